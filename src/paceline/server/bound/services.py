"""The services of callers who are bound to names."""

from __future__ import annotations

import copy

from paceline.downstream.directory import Downstreams, Listed
from paceline.server.access.names import Names
from paceline.server.bound.calls import offer, refuse_others
from paceline.server.bound.limits import BoundLimiter, BoundPlans
from paceline.server.bound.queue import BoundPeriodic, BoundQueue
from paceline.server.bound.slots import BoundSlots
from paceline.server.console.overview import Overview
from paceline.server.flow import Flow, Flows
from paceline.server.http.services import Services
from paceline.server.rollups import model
from paceline.server.rollups.history import History, Number
from paceline.server.rollups.model import Counts, Key, Period
from paceline.server.rollups.reader import RollupReader
from paceline.server.shared_reads import SharedReads
from paceline.server.wiring.limits import Limits
from paceline.slots.model import PolicyVersion

MAX_BOUND = 1000
"""The most sets of names whose services are kept."""


def bound_services(services: Services, names: Names) -> Services:
    """The same services for a caller who is bound to names: what shows or changes names knows only these."""
    known = services.bound.get(names)
    if known is None:
        if len(services.bound) >= MAX_BOUND:
            services.bound.clear()
        known = services.bound[names] = _bound(services, names)
    return known


def _bound(services: Services, names: Names) -> Services:
    bound = copy.copy(services)
    slots = BoundSlots(services.slots, names)
    bound.names = names
    bound.slots, bound.queue = slots, BoundQueue(services.queue, slots, names)
    bound.periodic = BoundPeriodic(services.periodic, names)
    bound.admission = Limits(
        BoundLimiter(services.admission.limiter, names), BoundPlans(services.admission.plans, names)
    )
    bound.downstreams = BoundDownstreams(services.downstreams, names)
    bound.flows = BoundFlows(services.flows, names)
    bound.rollups = BoundRollups(services.rollups, names)
    bound.apps = {}
    bound.overview, bound.page_reads = Overview(bound), SharedReads()
    return bound


class BoundDownstreams(Downstreams):
    """`Downstreams` of some names."""

    def __init__(self, downstreams: Downstreams, names: Names) -> None:
        self._original = downstreams
        self._names = names

    async def list(self) -> Listed:
        listed = await self._original.list()
        return listed._replace(known=[known for known in listed.known if self._names.allow(known.name)])


offer(BoundDownstreams, Downstreams, "name", lambda downstreams, name: downstreams._names.check(name), ["change"])
refuse_others(BoundDownstreams, Downstreams)


class BoundFlows(Flows):
    """`Flows` of some names. They share the reads of all."""

    def __init__(self, flows: Flows, names: Names) -> None:
        self._original = flows
        self._names = names

    async def queue(self, item_type: str) -> Flow:
        self._names.check_type(item_type)
        return await self._original.queue(item_type)

    async def config(self, version: PolicyVersion) -> Flow:
        self._names.check(version.name)
        return await self._original.config(version)


refuse_others(BoundFlows, Flows)


class BoundRollups(RollupReader):
    """The history of some names, and no number of all."""

    def __init__(self, rollups: RollupReader, names: Names) -> None:
        self._original = rollups
        self._names = names

    async def history(self, seconds: int) -> History:
        return (await self._original.history(seconds)).only(self._allow)

    async def numbers(self) -> list[Number]:
        return []

    async def flow_minutes(self, label: str) -> dict[Period, Counts]:
        self._names.check_type(label)
        return await self._original.flow_minutes(label)

    def _allow(self, key: Key) -> bool:
        if key.series.startswith(model.OF_ITEM_TYPES):
            return self._names.allow_type(key.label)
        return key.series.startswith(model.OF_NAMES) and self._names.allow(key.label)


refuse_others(BoundRollups, RollupReader)
