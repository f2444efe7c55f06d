"""Observers of the features, for the rollups: each implements what it counts of its feature's observer protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

from paceline.errors import NotFound, PacelineError
from paceline.limits.model import Decision
from paceline.server.rollups import model
from paceline.server.rollups.model import OTHER
from paceline.server.rollups.recorder import Recorder
from paceline.slots.booking.packing import Booking, proves_config
from paceline.slots.model import AssignedSlot

_PLAN_AND_ALLOWED = attrgetter("plan", "allowed")

T = TypeVar("T")


class SlotRollups:
    """Counts slots that were booked or refused, per config; those that follow a template together, under its name."""

    def __init__(self, recorder: Recorder, series_of: Callable[[str], str | None]) -> None:
        """`series_of` is `SlotStore.series_of`."""
        self._recorder = recorder
        self._series_of = series_of
        self._names: set[str] = set()

    def booked(self, name: str, bookings: Sequence[Booking], seconds: float) -> None:
        if name not in self._names and proves_config(name, bookings):
            self._names.add(name)
        label = self._label(name)
        booked = refused = 0
        for booking in bookings:
            if isinstance(booking, AssignedSlot):
                booked += not booking.existing
            elif not isinstance(booking, NotFound):
                refused += 1
        self._recorder.add(model.SLOTS_BOOKED, label, booked)
        self._recorder.add(model.SLOTS_REFUSED, label, refused)

    def failed(self, name: str, requests: int, error: PacelineError) -> None:
        self._recorder.add(model.SLOTS_REFUSED, self._label(name), requests)

    def _label(self, name: str) -> str:
        """An unknown name must not become a series: the number of typos is unbounded."""
        return (self._series_of(name) or name) if name in self._names else OTHER


class LimitRollups:
    """Counts decisions, per plan."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def decided(self, decision: Decision) -> None:
        self._recorder.add(model.LIMITS_ALLOWED if decision.allowed else model.LIMITS_DENIED, decision.plan)

    def decided_many(self, decisions: Sequence[Decision]) -> None:
        for (plan, allowed), count in Counter(map(_PLAN_AND_ALLOWED, decisions)).items():
            self._recorder.add(model.LIMITS_ALLOWED if allowed else model.LIMITS_DENIED, plan, count)

    def store_called(self, operation: str, seconds: float, failed: bool) -> None: ...

    def breaker_moved(self, state: str) -> None: ...

    def leased(self, plan: str, tokens: int) -> None: ...


class DispatchRollups:
    """Counts executions, per item type."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def finished(self, item_type: str, completed: int, failed: int) -> None:
        self._recorder.add(model.ITEMS_COMPLETED, item_type, completed)
        self._recorder.add(model.ITEMS_FAILED, item_type, failed)

    def dead_lettered(self, item_type: str, items: int) -> None:
        self._recorder.add(model.ITEMS_DEAD, item_type, items)

    def executed(self, item_type: str, seconds: float) -> None:
        self._recorder.observe(model.ITEMS_SECONDS, item_type, seconds)


class DownstreamRollups:
    """Counts calls to downstreams, per operation."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def called(self, operation: str, outcome: str, seconds: float) -> None:
        self._recorder.add(model.CALLS, operation)
        # An outcome is the status of the answer, or the kind of failure.
        if not outcome.startswith("2"):
            self._recorder.add(model.CALLS_FAILED, operation)


class MessageRollups:
    """Counts messages that were taken or refused, per path."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def attempted(self, path: str, outcome: str, seconds: float) -> None:
        self._recorder.add(model.MESSAGES_SENT if outcome == "SENT" else model.MESSAGES_REFUSED, path)


def with_rollups(observer: T, rollups: object) -> T:
    """The observer, and beside it one that implements some of its methods."""
    return cast(T, _Both(observer, rollups))


class _Both:
    """Calls a method of one observer, then the same of the other, if that has it."""

    def __init__(self, first: object, second: object) -> None:
        self._pair = first, second

    def __getattr__(self, name: str) -> Any:
        first, second = self._pair
        method, other = getattr(first, name), getattr(second, name, None)
        if other is not None and callable(method):
            method = _one_after_the_other(method, other)
        # Cached: the next call finds it as an attribute.
        setattr(self, name, method)
        return method


def _one_after_the_other(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any, **options: Any) -> None:
        first(*arguments, **options)
        second(*arguments, **options)

    return call
