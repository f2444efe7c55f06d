"""What a slot is: the policy that shapes it, the request for it, the slot itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from paceline.durations import LATEST_MS, duration_ms, format_duration, from_ms, parse_duration, parse_instant, to_ms
from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.calendars import Calendar
from paceline.slots.curves import CurveEntry, CurveLimits, curve_from_json, curve_to_json
from paceline.tracing import Origin

LONGEST_ID = 255
LONGEST_NAME = 128
LONGEST_FOLLOWED = 64
MOST_CONFIGS = 8
"""Configs that one event may be booked under."""
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line separators, and lone surrogates. The wire schema has the same pattern."""
MOST_PER_WINDOW = 2**31 - 1
SHORTEST_WINDOW = timedelta(milliseconds=10)
LONGEST_WINDOW = timedelta(days=366)
LONGEST_DELAY = timedelta(days=36_500)


class Spread(StrEnum):
    """How slots lie inside their window."""

    JITTER = "jitter"
    """Uniformly at random."""
    EVEN = "even"
    """By the golden-ratio sequence: gaps stay nearly equal at every fill level, and after a raise."""


class FirstWindow(StrEnum):
    """What the window of the requested time offers."""

    PROPORTIONAL = "proportional"
    """What lies in the rest of the window may not exceed the limit in proportion to that rest."""
    WHOLE = "whole"
    """The whole limit: an untouched window takes as much at its end as at its start."""


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """How much may happen in each window of time.

        WindowPolicy(max_per_window=100, window="PT4S", spread="even")

    `window` is a duration (`4s`, `PT4S`) or a timedelta; `max_delay`, if given, is how long after the requested time a
    slot may lie at most; later, nothing is booked. `first_window` is what the window of the requested time itself
    offers. A `curve` gives windows another limit by time of day and weekday, in the calendar's zone or, without a
    calendar, in UTC.

    With `follow`, the name of a downstream, the service lowers the limit when that takes less for some time, raises it
    when it takes more again, and re-plans. `full_max` is then the limit without that, and None if it is not lowered.
    """

    max_per_window: int
    window: timedelta
    spread: Spread = Spread.JITTER
    calendar: Calendar | None = None
    max_delay: timedelta | None = None
    first_window: FirstWindow = FirstWindow.PROPORTIONAL
    curve: tuple[CurveEntry, ...] = ()
    follow: str | None = None
    full_max: int | None = None
    size_ms: int = field(init=False, repr=False, compare=False)
    """The window's length in milliseconds."""
    max_delay_ms: int | None = field(init=False, repr=False, compare=False)
    curve_limits: CurveLimits | None = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        max_per_window: int,
        window: str | timedelta,
        spread: str | Spread = Spread.JITTER,
        calendar: Calendar | dict[str, Any] | None = None,
        max_delay: str | timedelta | None = None,
        first_window: str | FirstWindow = FirstWindow.PROPORTIONAL,
        curve: Sequence[CurveEntry] | Sequence[Mapping[str, Any]] | None = None,
        follow: str | None = None,
        full_max: int | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "max_per_window", _limit(max_per_window))
        put(self, "window", _window(window))
        put(self, "spread", _spread(spread))
        put(self, "calendar", _calendar(calendar))
        put(self, "max_delay", None if max_delay is None else _delay(max_delay))
        put(self, "first_window", _first_window(first_window))
        put(self, "size_ms", duration_ms(self.window))
        put(self, "max_delay_ms", None if self.max_delay is None else duration_ms(self.max_delay))
        put(self, "curve", _curve(curve))
        put(self, "follow", None if follow is None else _follow(follow, self.curve))
        put(self, "full_max", _full_max(full_max, self.follow, self.max_per_window))
        zone = "UTC" if self.calendar is None else self.calendar.zone
        limits = CurveLimits(self.curve, zone, self.size_ms, self.max_per_window) if self.curve else None
        put(self, "curve_limits", limits)

    def limit_at(self, start_ms: int) -> int:
        """The most slots in the window that starts at a time."""
        return self.max_per_window if self.curve_limits is None else self.curve_limits.at(start_ms)

    @property
    def lowest_limit(self) -> int:
        """The least that any window may hold."""
        return self.max_per_window if self.curve_limits is None else self.curve_limits.lowest

    @property
    def highest_limit(self) -> int:
        """The most that any window may hold."""
        return self.max_per_window if self.curve_limits is None else self.curve_limits.highest

    def next_open(self, at_ms: int) -> int:
        """The first open window that starts at or after a time; `LATEST_MS` if there is none."""
        if self.calendar is None:
            return min(-(-at_ms // self.size_ms) * self.size_ms, LATEST_MS)
        start = self.calendar.next_open_window(at_ms, self.size_ms)
        return LATEST_MS if start is None else start

    def to_json(self) -> dict[str, Any]:
        """The policy as it stands on the wire."""
        return {
            "maxPerWindow": self.max_per_window,
            "windowSize": format_duration(self.window),
            "spread": self.spread.value,
            "calendar": None if self.calendar is None else self.calendar.to_json(),
            "maxDelay": None if self.max_delay is None else format_duration(self.max_delay),
            "firstWindow": self.first_window.value,
            "curve": curve_to_json(self.curve),
            "follow": self.follow,
            "fullMaxPerWindow": self.full_max,
        }


def changed_policy(current: WindowPolicy | None, changes: Mapping[str, Any]) -> WindowPolicy:
    """A policy with some fields changed: a field that is not given stays as it is, None removes a `calendar`, a
    `curve`, a `max_delay`, a `spread`, a `first_window` or a `follow`. Without a `current` policy, `max_per_window` and
    `window` are required. A limit that was lowered for a downstream is the full one again, if the change says how many
    may be in a window, or which downstream it follows.

    Raises:
        InvalidInput: a field is missing, is not one of a policy, or has a wrong value.
    """
    if not isinstance(changes, Mapping):
        raise InvalidInput("changes", f"must be fields and their values, not a {type(changes).__name__}")
    names = [member.name for member in fields(WindowPolicy) if member.init]
    for name in changes:
        if name not in names:
            raise InvalidInput(str(name), f"is not a field of a policy; use {', '.join(names)}")
    if current is None:
        for name in ("max_per_window", "window"):
            if name not in changes:
                raise InvalidInput(name, "is required for a new config")
        return WindowPolicy(**_without_defaulted(changes))
    kept = {name: getattr(current, name) for name in names}
    if "full_max" not in changes and _OF_THE_LIMIT & changes.keys():
        kept |= {"max_per_window": current.full_max or current.max_per_window, "full_max": None}
    kept = {
        name: value for name, value in kept.items() if name not in _DEFAULTED or changes.get(name, value) is not None
    }
    return WindowPolicy(**kept | _without_defaulted(changes))


_OF_THE_LIMIT = {"max_per_window", "window", "follow"}
_DEFAULTED = ("spread", "first_window")
"""Fields whose removal means the policy's own default."""


def _without_defaulted(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes without a None that means a default."""
    return {name: value for name, value in changes.items() if name not in _DEFAULTED or value is not None}


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A policy under its name, as the store keeps it: versions count from 1, the newest is active, none is deleted."""

    name: str
    version: int
    policy: WindowPolicy
    created_at: datetime


class SlotRequest(NamedTuple):
    """A request for a slot. Build it with `SlotRequest.of`, which validates.

    SlotRequest.of("order-1", "2027-03-01T16:00:00Z")
    """

    event_id: str
    requested_ms: int

    @classmethod
    def all_of(cls, events: Iterable[SlotRequest | tuple[str, str | datetime]]) -> list[SlotRequest]:
        """Checked requests for events given as `(event_id, requested_time)`, or as requests.

        Raises:
            InvalidInput: an event is wrong; one that is no pair is named by its number.
        """
        requests = []
        for number, event in enumerate(events):
            if not isinstance(event, SlotRequest):
                if not isinstance(event, tuple | list) or len(event) != 2:
                    raise InvalidInput(f"events[{number}]", "give (event_id, requested_time)")
                event = cls.of(*event)
            requests.append(event)
        return requests

    @classmethod
    def of(cls, event_id: str, requested_time: str | datetime) -> SlotRequest:
        """A checked request; the requested time is rounded up to the millisecond, so that nothing runs early.

        Raises:
            InvalidInput: the id or the time is wrong.
        """
        return cls(checked_id(event_id), to_ms(parse_instant(requested_time, "requested_time")))


class TracedRequest(SlotRequest):
    """A request whose booking is part of a trace. To stores it is a request like any other."""

    origin: Origin

    @classmethod
    def within(cls, origin: Origin, request: SlotRequest) -> TracedRequest:
        traced = cls(*request)
        traced.origin = origin
        return traced


class BookingGroup(NamedTuple):
    """Requests under the same configs, in the order in which they came; their new slots belong to `owner`."""

    names: tuple[str, ...]
    requests: Sequence[SlotRequest]
    owner: str | None = None


class SlotWindow(NamedTuple):
    """A window that a slot is charged in: of which config, by which version of it."""

    config_name: str
    config_version: int
    window_start_ms: int

    @property
    def window_start(self) -> datetime:
        return from_ms(self.window_start_ms)


class AssignedSlot(NamedTuple):
    """A booked time. Times are kept as epoch milliseconds; the properties return datetimes.

    slot = await slots.assign("order-1", "default", "2027-03-01T16:00:00Z")
    slot.scheduled_time, slot.delay
    """

    event_id: str
    config_name: str
    config_version: int
    requested_ms: int
    window_start_ms: int
    scheduled_ms: int
    existing: bool = False
    """True when this event had its slot before this call."""
    owner: str | None = None
    """The application that the slot belongs to, and that alone may cancel it."""
    other_windows: tuple[SlotWindow, ...] = ()
    """The windows of its further configs, if it was booked under several."""

    @property
    def windows(self) -> tuple[SlotWindow, ...]:
        """Every window that the slot is charged in, in the order in which its configs were named."""
        return SlotWindow(self.config_name, self.config_version, self.window_start_ms), *self.other_windows

    @property
    def config_names(self) -> tuple[str, ...]:
        """Every config that the slot was booked under."""
        return self.config_name, *(window.config_name for window in self.other_windows)

    @property
    def scheduled_time(self) -> datetime:
        return from_ms(self.scheduled_ms)

    @property
    def requested_time(self) -> datetime:
        return from_ms(self.requested_ms)

    @property
    def window_start(self) -> datetime:
        return from_ms(self.window_start_ms)

    @property
    def delay(self) -> timedelta:
        """How long after the requested time the slot lies."""
        return timedelta(milliseconds=self.scheduled_ms - self.requested_ms)


def checked_id(event_id: object, field: str = "event_id") -> str:
    """An identifier of 1 to 255 characters, none of them a control character."""
    if not isinstance(event_id, str) or not event_id:
        raise InvalidInput(field, "must be a text of 1 to 255 characters")
    if len(event_id) > LONGEST_ID:
        raise InvalidInput(field, f"has {len(event_id)} characters; at most {LONGEST_ID} are allowed")
    # `isprintable` is true of nearly all ids, and faster; alone it would reject other spaces, and characters that are
    # newer than this Python's Unicode tables.
    if not event_id.isprintable() and _FORBIDDEN.search(event_id):
        raise InvalidInput(field, "holds a control character, a line separator or half a surrogate pair")
    return event_id


def checked_name(name: object, field: str = "config_name") -> str:
    """A config name: 1 to 128 characters, none of them a control character."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or _FORBIDDEN.search(name):
        raise InvalidInput(field, f"must be a text of 1 to {LONGEST_NAME} characters without control characters")
    return name


def checked_names(names: object, field: str = "config_names") -> tuple[str, ...]:
    """The names of the configs of one event: 1 to 8, all different."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidInput(field, f"must be a list of 1 to {MOST_CONFIGS} config names")
    if not 1 <= len(names) <= MOST_CONFIGS:
        raise InvalidInput(field, f"has {len(names)} names; give 1 to {MOST_CONFIGS}")
    checked = tuple(checked_name(name, f"{field}[{index}]") for index, name in enumerate(names))
    for index, name in enumerate(checked):
        if name in checked[:index]:
            raise InvalidInput(f"{field}[{index}]", f"{name!r} is named twice; name each config once")
    return checked


def _limit(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_PER_WINDOW:
        raise ConfigurationError("max_per_window", f"must be a whole number from 1 to {MOST_PER_WINDOW}")
    return value


def _follow(value: object, curve: Sequence[CurveEntry]) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_FOLLOWED or not value.isprintable():
        raise ConfigurationError("follow", f"must be the name of a downstream, of 1 to {LONGEST_FOLLOWED} characters")
    if curve:
        raise ConfigurationError("follow", "a policy with a curve can't follow a downstream; remove one of the two")
    return value


def _full_max(value: int | None, follow: str | None, limit: int) -> int | None:
    if value is None or follow is None:
        return None
    if _limit(value) < limit:
        raise ConfigurationError("full_max", f"is below max_per_window, {limit}")
    return None if value == limit else value


def _curve(value: object) -> tuple[CurveEntry, ...]:
    if isinstance(value, list | tuple) and all(isinstance(entry, CurveEntry) for entry in value):
        return tuple(value)
    return curve_from_json(value, MOST_PER_WINDOW)


def _window(value: str | timedelta) -> timedelta:
    span = _span(value, "window")
    if not SHORTEST_WINDOW <= span <= LONGEST_WINDOW:
        raise ConfigurationError("window", "must be from PT0.01S (10 ms) to P366D")
    if span % timedelta(milliseconds=1):
        raise ConfigurationError("window", "must be a whole number of milliseconds")
    return span


def _delay(value: str | timedelta) -> timedelta:
    span = _span(value, "max_delay")
    if not timedelta(0) <= span <= LONGEST_DELAY:
        raise ConfigurationError("max_delay", "must be from PT0S to P36500D")
    return span


def _span(value: str | timedelta, field: str) -> timedelta:
    try:
        return parse_duration(value, field)
    except InvalidInput as error:
        raise ConfigurationError(error.field, error.problem) from None


def _spread(value: object) -> Spread:
    try:
        return Spread(str(value).lower())
    except ValueError:
        raise ConfigurationError("spread", f"{value!r} is unknown; use jitter or even") from None


def _calendar(value: object) -> Calendar | None:
    if isinstance(value, dict):
        return Calendar.from_json(value)
    if value is not None and not isinstance(value, Calendar):
        example = '{"zone": "Europe/Berlin", "holidays": "DE"}'
        raise ConfigurationError("calendar", f"{value!r} is no calendar; give a Calendar, or a dict such as {example}")
    return value


def _first_window(value: object) -> FirstWindow:
    try:
        return FirstWindow(str(value).lower())
    except ValueError:
        raise ConfigurationError("first_window", f"{value!r} is unknown; use proportional or whole") from None
