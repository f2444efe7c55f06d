"""Is there an order of calls on some counters that explains every answer? Wing and Gong's search, with memory.

Each call took effect at one moment between its beginning and its end. One whose answer is unknown took effect at some
moment after it began, or never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Spent = tuple[int, ...]
"""What is spent of each plan, in the order of `limits`."""


class CounterCall(NamedTuple):
    """A call on counters: `acquire` (all plans or none), `peek`, `refund` or `reset`."""

    kind: str
    plans: tuple[str, ...]
    cost: int
    began: float
    ended: float
    """Infinite if the outcome is unknown."""
    allowed: bool | None = None
    remaining: tuple[tuple[str, int], ...] = ()
    """By plan, from the answer. Empty if the answer has none."""

    @property
    def is_known(self) -> bool:
        return self.ended != float("inf")


def is_linearizable(calls: Sequence[CounterCall], limits: Mapping[str, int]) -> bool:
    """Whether some order explains all answers."""
    known = sorted((call for call in calls if call.is_known), key=lambda call: call.began)
    # Unknown calls of one kind are alike but for their beginning: taking them in that order loses no explanation.
    classes: dict[tuple[str, tuple[str, ...], int], list[CounterCall]] = {}
    for call in sorted((call for call in calls if not call.is_known), key=lambda call: call.began):
        if call.kind != "peek":
            classes.setdefault((call.kind, call.plans, call.cost), []).append(call)
    unknown = list(classes.values())
    names = list(limits)
    everything = (1 << len(known)) - 1
    start = (0, (0,) * len(unknown), (0,) * len(names))
    seen, stack = {start}, [start]
    while stack:
        done, used, spent = stack.pop()
        if done == everything:
            return True
        waiting = [index for index in range(len(known)) if not done >> index & 1]
        deadline = min(known[index].ended for index in waiting)
        following = []
        for number, alike in enumerate(unknown):
            if used[number] < len(alike) and alike[used[number]].began <= deadline:
                after = _effect(alike[used[number]], spent, names, limits)
                if after != spent:
                    following.append((done, (*used[:number], used[number] + 1, *used[number + 1 :]), after))
        for index in waiting:
            call = known[index]
            if call.began <= deadline:
                after = _effect(call, spent, names, limits)
                if _explains(call, spent, after, names, limits):
                    following.append((done | 1 << index, used, after))
        for state in following:
            if state not in seen:
                seen.add(state)
                stack.append(state)
    return False


def _effect(call: CounterCall, spent: Spent, names: list[str], limits: Mapping[str, int]) -> Spent:
    """What is spent after the call."""
    match call.kind:
        case "acquire" if _has_room(call, spent, names, limits):
            return tuple(
                used + call.cost if name in call.plans else used for name, used in zip(names, spent, strict=True)
            )
        case "refund":
            return tuple(
                max(0, used - call.cost) if name in call.plans else used
                for name, used in zip(names, spent, strict=True)
            )
        case "reset":
            return tuple(0 if name in call.plans else used for name, used in zip(names, spent, strict=True))
    return spent


def _has_room(call: CounterCall, spent: Spent, names: list[str], limits: Mapping[str, int]) -> bool:
    return all(used + call.cost <= limits[name] for name, used in zip(names, spent, strict=True) if name in call.plans)


def _explains(call: CounterCall, spent: Spent, after: Spent, names: list[str], limits: Mapping[str, int]) -> bool:
    """Whether the call could have been answered so."""
    if call.allowed is not None and call.allowed != _has_room(call, spent, names, limits):
        return False
    left = {name: limits[name] - used for name, used in zip(names, after, strict=True)}
    return all(left[plan] == reported for plan, reported in call.remaining)
