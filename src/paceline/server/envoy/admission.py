"""Deciding the descriptors of one request: all or nothing, in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.errors import CostExceedsCapacity, NotFound
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision, Reason, Rule
from paceline.server.envoy.descriptors import Entries, Match, Unit, override_match, without_replaced
from paceline.server.envoy.plans import EnvoyPlans

UNKNOWN = (Reason.FAIL_OPEN, Reason.FAIL_CLOSED)
"""Decisions made without the store: what is left is unknown."""


class Descriptor(NamedTuple):
    """One descriptor of a request."""

    entries: Entries
    hits: int = 1
    """Its cost. 0 checks for room, and charges nothing; a negative cost is refunded."""
    reported: bool = False
    """Whether the hits were given for this descriptor. Envoy reports such hits after the work, so they count even if
    there is no room for all of them."""
    override: tuple[int, Unit] | None = None
    """A limit that the descriptor brings: so many per unit."""


class Status(NamedTuple):
    """The state of one descriptor."""

    allowed: bool
    match: Match | None = None
    rule: Rule | None = None
    """The rule that decided; `None` if nothing limits the descriptor, or nothing is known."""
    remaining: int = 0
    reset_after_us: int = 0


class Outcome(NamedTuple):
    """The decision on a request: whether it may pass, and the state of each descriptor."""

    allowed: bool
    statuses: Sequence[Status]
    decision: Decision | None = None
    """The limiter's decision, if there was one."""
    rules: Sequence[Rule] = ()
    """The rules of `decision`, in its order."""


class _Link(NamedTuple):
    """What is charged to one count. Descriptors of the same count are charged together."""

    key: str
    rule: Rule
    cost: int

    @property
    def never_fits(self) -> bool:
        return self.cost > self.rule.size and not self.rule.shadow


class DescriptorLimiter:
    """Decides requests of Envoy by the rules and the plans in force.

    A request passes if every descriptor has room. Then all are charged, else none is; but for hits that Envoy reported
    of a descriptor, which are spent as far as there is room.
    """

    def __init__(self, limiter: AsyncLimiter, plans: EnvoyPlans) -> None:
        self._limiter = limiter
        self._plans = plans

    async def decide(self, domain: str, descriptors: Sequence[Descriptor]) -> Outcome:
        """Decides one request.

        Raises:
            StoreError: the store answered with an error. On `StoreUnavailable`, the plans' `on_error` decides.
        """
        if len(descriptors) == 1 and (outcome := await self._decide_plain(domain, descriptors[0])) is not None:
            return outcome
        matches = await self._match(domain, descriptors)
        try:
            return await self._decide(descriptors, matches)
        except (NotFound, CostExceedsCapacity):
            # A plan was deleted or lowered since the rules were matched.
            await self._limiter.refresh()
            return await self._decide(descriptors, await self._match(domain, descriptors))

    async def _decide_plain(self, domain: str, descriptor: Descriptor) -> Outcome | None:
        """The commonest request: one descriptor under a plain limit. `None`, and nothing charged, for all others."""
        entries, hits, reported, override = descriptor
        match = self._plans.rules.match(domain, entries)
        if match is None or match.limit.quota or hits < 1 or reported or override is not None:
            return None
        key, limiter = match.key, self._limiter
        try:
            rule = limiter.rule(match.plan, key)
            if rule.shadow:
                return None
            decision = await limiter.acquire(key, match.plan, hits)
        except (NotFound, CostExceedsCapacity):
            return None
        if decision.reason in UNKNOWN:
            status = Status(decision.allowed, match)
        else:
            wait_us = decision.retry_after_us or decision.reset_after_us
            status = Status(decision.allowed, match, rule, decision.remaining, wait_us)
        return Outcome(decision.allowed, (status,), decision, (rule,))

    async def _match(self, domain: str, descriptors: Sequence[Descriptor]) -> list[Match | None]:
        rules = self._plans.rules
        if all(descriptor.override is None for descriptor in descriptors):
            return rules.match_all(domain, [descriptor.entries for descriptor in descriptors])
        matches: list[Match | None] = []
        added = False
        for entries, _, _, override in descriptors:
            if override is None:
                matches.append(rules.match(domain, entries))
            else:
                match = override_match(domain, entries, *override)
                added = self._plans.add_override(match) or added
                matches.append(match)
        if added:
            await self._limiter.refresh()
        return without_replaced(matches)

    async def _decide(self, descriptors: Sequence[Descriptor], matches: Sequence[Match | None]) -> Outcome:
        rules = [None if match is None else self._rule(match) for match in matches]
        links: dict[tuple[str, str], _Link] = {}
        checks: list[_Link] = []
        refused = False
        for descriptor, match, rule in zip(descriptors, matches, rules, strict=True):
            if match is None:
                continue
            if rule is None:
                refused = refused or (match.limit.blocks and not match.limit.shadow and not match.limit.quota)
            elif descriptor.hits < 1:
                checks.append(_Link(match.key, rule, descriptor.hits))
            else:
                before = links.get((match.key, rule.plan))
                cost = descriptor.hits
                if before is not None:
                    cost, rule = cost + before.cost, min(rule, before.rule, key=_size)
                links[match.key, rule.plan] = _Link(match.key, rule, cost)
        charged = list(links.values())
        refused = refused or any(link.never_fits for link in charged)
        states: dict[tuple[str, str], Status] = {}
        for link in checks:
            states[link.key, link.rule.plan] = state = await self._check(link)
            refused = refused or not (state.allowed or link.rule.shadow)
        decision: Decision | None = None
        if refused:
            for link in charged:
                states[link.key, link.rule.plan] = await self._peek(link)
        elif charged:
            decision = await self._acquire(charged)
            states |= _states(decision, charged)
        own_states = [
            None if match is None or rule is None else states.get((match.key, rule.plan))
            for match, rule in zip(matches, rules, strict=True)
        ]
        statuses = [
            Status(True) if match is None else _status(match, state)
            for match, state in zip(matches, own_states, strict=True)
        ]
        allowed = not refused and (decision is None or decision.allowed)
        if allowed and _exhausted(statuses):
            allowed = False
            for link in charged:
                if states[link.key, link.rule.plan].allowed:
                    await self._limiter.refund(link.key, link.rule.owner, link.cost)
        if not allowed:
            await self._spend_reported(descriptors, matches, own_states)
        return Outcome(allowed, statuses, decision, [link.rule for link in charged])

    def _rule(self, match: Match) -> Rule | None:
        """The rule of a match; `None` if it has no plan, because it is unlimited or refuses everything."""
        try:
            return self._limiter.rule(match.plan, match.key)
        except NotFound:
            if match.limit.unlimited or match.limit.blocks:
                return None
            raise

    async def _acquire(self, links: Sequence[_Link]) -> Decision:
        if len(links) == 1:
            link = links[0]
            return await self._limiter.acquire(link.key, link.rule.owner, link.cost)
        return await self._limiter.acquire_chain([(link.key, link.rule.owner, link.cost) for link in links])

    async def _check(self, link: _Link) -> Status:
        """Whether there is room for one more. Hits below 0 are given back, which is never refused."""
        if link.cost < 0:
            await self._limiter.refund(link.key, link.rule.owner, min(-link.cost, link.rule.size))
        state = await self._peek(link._replace(cost=1))
        return state._replace(allowed=True) if link.cost < 0 else state

    async def _peek(self, link: _Link) -> Status:
        """The state of a count. A cost that never fits is denied, whatever is left."""
        decision = await self._limiter.peek(link.key, link.rule.owner, min(link.cost, link.rule.size))
        state = _states(decision, [link])[link.key, link.rule.plan]
        return state._replace(allowed=False) if link.cost > link.rule.size else state

    async def _spend_reported(
        self,
        descriptors: Sequence[Descriptor],
        matches: Sequence[Match | None],
        states: Sequence[Status | None],
    ) -> None:
        for descriptor, match, state in zip(descriptors, matches, states, strict=True):
            if match is None or state is None or state.rule is None or not state.remaining:
                continue
            if descriptor.reported and descriptor.hits > 0:
                async with await self._limiter.reserve(match.key, match.plan, 1) as reservation:
                    # A cost above the reservation is charged up to the limit.
                    await reservation.settle(min(descriptor.hits, state.rule.size))


def _size(rule: Rule) -> int:
    return rule.size


def _states(decision: Decision, links: Sequence[_Link]) -> dict[tuple[str, str], Status]:
    """Each count's state. Of a decision without the store, nothing is known but whether it passed."""
    plans = decision.states
    if decision.reason in UNKNOWN or len(plans) != len(links):
        return {
            (link.key, link.rule.plan): Status(decision.allowed or link.rule.owner != decision.plan) for link in links
        }
    states = {}
    for link, plan in zip(links, plans, strict=True):
        wait_us = plan.retry_after_us or plan.reset_after_us
        states[link.key, link.rule.plan] = Status(plan.allowed, None, link.rule, plan.remaining, wait_us)
    return states


def _status(match: Match, state: Status | None) -> Status:
    return Status(not match.limit.blocks, match) if state is None else state._replace(match=match)


def is_over(status: Status) -> bool:
    """Whether a descriptor is reported to Envoy as over its limit. A shadow limit never is."""
    if status.allowed:
        return False
    limit = None if status.match is None else status.match.limit
    if limit is not None and (limit.quota or status.rule is None):
        return limit.quota or not limit.shadow
    return not (status.rule is not None and status.rule.shadow)


def _exhausted(statuses: Sequence[Status]) -> bool:
    """Whether there are quotas, and none of them has room."""
    quotas = [status for status in statuses if status.match is not None and status.match.limit.quota]
    return bool(quotas) and not any(status.allowed for status in quotas)
