"""The permits for calls to the downstream. Pure: state and time in, the next state and a grant out.

There are as many permits as calls may be made in a sliding second. A permit is held from its grant until its call can
no longer count, so no sliding second sees more calls than permits. Calls are paced: two of them leave no closer than
`spacing_us`, but for a burst after a pause. A grant may lie a little in the future (`LOOK_AHEAD_US`): its caller sleeps
until then, so that no time is lost between two calls.

A state from another life of its store may lack calls that were made last. So nothing is granted until they are over, or
for a minute, if that is sooner (`reopened`).

`lua/permit_take.lua` is this module for Redis.
"""

from __future__ import annotations

from typing import NamedTuple

SECOND_US = 1_000_000
LOOK_AHEAD_US = 100_000
LOST_US = 60 * SECOND_US
"""How far a standby is behind, at most, when it takes over."""


class PermitPolicy(NamedTuple):
    """How many permits there are, and how close two calls may leave."""

    number: int
    spacing_us: int
    burst: int = 1
    """How many calls may leave at once after a pause."""


class Permits(NamedTuple):
    """The holders of permits, and until when. All times are microseconds of the store's clock."""

    held: dict[str, int]
    """Holder → when its permit is free again."""
    paced_us: int = 0
    """When the next call would leave if all were evenly spaced."""
    open_us: int = 0
    """Nothing is granted before."""
    life: str = ""
    """The store's life in which this was written; after a restart or failover the store has another one. One word."""

    def to_text(self) -> str:
        """As it is stored."""
        numbers = (f"{holder} {free_us}" for holder, free_us in self.held.items())
        return " ".join((self.life, str(self.open_us), str(self.paced_us), *numbers))

    @classmethod
    def of_text(cls, text: str) -> Permits:
        """As it was stored."""
        life, open_us, paced_us, *rest = text.split()
        held = {holder: int(free_us) for holder, free_us in zip(rest[::2], rest[1::2], strict=True)}
        return cls(held, int(paced_us), int(open_us), life)


class Grant(NamedTuple):
    """The result of `take`."""

    wait_us: int
    """0 if granted; else the time until the next attempt."""
    delay_us: int = 0
    """How long from now until the call may leave, if granted."""
    now_us: int = 0
    """The store's clock, when it decided."""


def take(state: Permits, policy: PermitPolicy, holder: str, hold_us: int, now_us: int) -> tuple[Permits, Grant]:
    """Grants a permit until `hold_us` after the call leaves.

    A holder that has one exchanges it: its call left too late for the old one, but its spacing is paid.
    """
    state = state._replace(held={name: free_us for name, free_us in state.held.items() if free_us > now_us})
    is_exchange = holder in state.held
    held = {name: free_us for name, free_us in state.held.items() if name != holder}
    if state.open_us > now_us:
        return state, Grant(min(state.open_us - now_us, SECOND_US), 0, now_us)
    leave_us = now_us if is_exchange else max(now_us, state.paced_us - (policy.burst - 1) * policy.spacing_us)
    excess = len(held) - policy.number
    if excess >= 0:
        leave_us = max(leave_us, sorted(held.values())[excess])
    if leave_us - now_us > LOOK_AHEAD_US:
        # At most a second: a response in the meantime frees its permit no sooner than that.
        return state, Grant(max(1, min(leave_us - now_us, SECOND_US) - LOOK_AHEAD_US), 0, now_us)
    held[holder] = leave_us + hold_us
    paced_us = state.paced_us if is_exchange else max(state.paced_us, leave_us) + policy.spacing_us
    return state._replace(held=held, paced_us=paced_us), Grant(0, leave_us - now_us, now_us)


def free(state: Permits, holder: str, at_us: int) -> Permits:
    """The holder's permit is free at that time, if that is sooner than it would be."""
    known = state.held.get(holder)
    if known is None or known <= at_us:
        return state
    return state._replace(held={**state.held, holder: at_us})


def reopened(state: Permits, life: str, hold_us: int, now_us: int) -> Permits:
    """The state in this life of its store. A new life may lack what was written last, so nothing is granted until the
    longest call is over, or for `LOST_US`: older permits are known, and hold. They were granted by another clock."""
    if state.life == life:
        return state
    held = {name: min(free_us, now_us + hold_us) for name, free_us in state.held.items() if free_us > now_us}
    return Permits(held, 0, now_us + min(hold_us, LOST_US), life)
