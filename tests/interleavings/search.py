"""Breadth-first search over every state that some actors can reach."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)


class Search(NamedTuple):
    """How much was looked at."""

    states: int
    depth: int


class Violation(AssertionError):
    """An invariant that does not hold, and the shortest way there."""


def search(
    start: State,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    problem: Callable[[State], str | None],
    *,
    most: int,
) -> Search:
    """Visits every state reachable from `start`. Fails at the first, and so the nearest, in which `problem` finds one;
    and if there are more than `most`, so that no search ends early unseen."""
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    layer, depth = [start], 0
    while layer:
        following: list[State] = []
        for state in layer:
            if (word := problem(state)) is not None:
                raise Violation("\n".join([*_way_to(state, came_from), word, str(state)]))
            for name, after in steps(state):
                if after not in came_from:
                    came_from[after] = (state, name)
                    following.append(after)
        if len(came_from) > most:
            raise Violation(f"more than {most} states at depth {depth}")
        layer, depth = following, depth + 1
    return Search(len(came_from), depth - 1)


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    names: list[str] = []
    while (origin := came_from[state]) is not None:
        state, name = origin
        names.append(name)
    return names[::-1]
