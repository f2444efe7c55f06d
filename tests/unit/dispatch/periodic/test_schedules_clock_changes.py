"""Ticks of cron expressions around changes of the clock, compared with a walk over all minutes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.dispatch.periodic.periodic_tasks import Periodic
from paceline.dispatch.periodic.schedules import Schedule
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.status import Status
from tests.effort import examples

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
SEEN = 8 * HOUR


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


CHANGES = [
    (zone, at(f"2027-{change}"))
    for zone, *changes in [
        ("Europe/Berlin", "03-28T01:00", "10-31T01:00"),
        ("America/New_York", "03-14T07:00", "11-07T06:00"),
        ("Australia/Lord_Howe", "10-02T15:30", "04-03T15:00"),  # by half an hour
        ("Antarctica/Troll", "03-28T01:00", "10-31T01:00"),  # by two hours
        ("Africa/Cairo", "04-29T22:00", "10-28T21:00"),  # at midnight
        ("Atlantic/Azores", "03-28T01:00", "10-31T01:00"),  # to midnight
        ("UTC", "03-28T01:00", "10-31T01:00"),
    ]
    for change in changes
]


@dataclass(frozen=True)
class Field:
    text: str
    values: frozenset[int]

    @property
    def is_any(self) -> bool:
        return self.text.startswith("*")


def fields(lowest: int, highest: int, often: int) -> st.SearchStrategy[Field]:
    """A field of a cron expression; its listed values are at most `often`."""

    def stepped(step: int) -> Field:
        return Field(f"*/{step}", frozenset(range(lowest, highest + 1, step)))

    def listed(values: frozenset[int]) -> Field:
        return Field(",".join(str(value) for value in sorted(values)), values)

    return st.one_of(
        st.just(Field("*", frozenset(range(lowest, highest + 1)))),
        st.sampled_from([2, 3, 7, 15]).map(stepped),
        st.frozensets(st.integers(lowest, often), min_size=1, max_size=3).map(listed),
    )


@dataclass(frozen=True)
class Cron:
    minute: Field
    hour: Field
    day: Field
    weekday: Field

    def __str__(self) -> str:
        return f"{self.minute.text} {self.hour.text} {self.day.text} * {self.weekday.text}"

    @property
    def at_fixed_times(self) -> bool:
        return not (self.minute.is_any or self.hour.is_any)

    def matches(self, shown: datetime) -> bool:
        days = shown.day in self.day.values, shown.isoweekday() % 7 in self.weekday.values
        on_day = all(days) if self.day.is_any or self.weekday.is_any else any(days)
        return on_day and shown.minute in self.minute.values and shown.hour in self.hour.values


CRONS = st.builds(Cron, fields(0, 59, 59), fields(0, 23, 4), fields(1, 31, 31), fields(0, 6, 6))


def walk(cron: Cron, zone: ZoneInfo, after: datetime, until: datetime) -> list[datetime]:
    """The ticks after `after`, up to `until`, by looking at the clock each minute. Fixed times count once: the first
    time that the clock shows them, or, if it skips them, at once after that."""
    ticks, moment = [], after - 4 * HOUR
    latest = moment.astimezone(zone).replace(tzinfo=None)
    while moment <= until:
        shown = moment.astimezone(zone).replace(tzinfo=None)
        if not cron.at_fixed_times:
            is_tick = cron.matches(shown)
        else:
            passed = (shown - latest) // MINUTE
            is_tick = any(cron.matches(latest + n * MINUTE) for n in range(1, passed + 1))
            latest = max(latest, shown)
        if is_tick and moment > after:
            ticks.append(moment)
        moment += MINUTE
    return ticks


@settings(max_examples=examples(500), deadline=None)
@given(CRONS, st.sampled_from(CHANGES), st.integers(-6 * 60, 3 * 60), st.integers(0, 59))
def test_ticks_increase_and_are_those_of_a_clock_that_is_watched(
    cron: Cron, change: tuple[str, datetime], minutes: int, seconds: int
) -> None:
    zone, changes_at = change
    start = changes_at + minutes * MINUTE
    after, until, ticks = start + timedelta(seconds=seconds), start + SEEN, list[datetime]()
    schedule = Schedule.of(cron=str(cron), zone=zone)
    while (tick := schedule.next_tick(after)) is not None and tick <= until:
        assert tick > after
        ticks.append(tick)
        after = tick
    assert ticks == walk(cron, ZoneInfo(zone), start, until)


@pytest.mark.parametrize(
    ("cron", "zone", "after", "tick"),
    [
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T01:10", "2027-11-01T01:30"),
        ("30 1 * * *", "America/New_York", "2027-11-07T06:10", "2027-11-08T06:30"),
        ("*/15 2 * * *", "Europe/Berlin", "2027-10-31T00:50", "2027-10-31T01:00"),
        ("*/15 1 30 * *", "Africa/Cairo", "2027-04-29T12:00", "2027-04-29T22:00"),
        ("*/15 3 * * *", "Australia/Lord_Howe", "2027-10-02T14:40", "2027-10-02T16:00"),
    ],
)
def test_a_tick_is_after_the_time_also_when_the_clock_changes(cron: str, zone: str, after: str, tick: str) -> None:
    assert Schedule.of(cron=cron, zone=zone).next_tick(at(after)) == at(tick)


async def test_a_tick_that_was_missed_before_the_clock_went_back_is_not_run_in_the_repeated_hour() -> None:
    async with DispatchQueue.open("memory://") as queue:
        await queue.configure("REPORT")
        periodic = Periodic(queue)
        daily = Schedule.of(cron="30 2 * * *", zone="Europe/Berlin", catch_up="skip")
        await periodic.put("daily", "REPORT", daily, now=at("2027-10-30T23:00"))
        for now in (at("2027-10-31T01:10"), at("2027-10-31T01:11")):
            assert await periodic.tick(now=now) == at("2027-11-01T01:30") - now
        assert (await periodic.show("daily", now=at("2027-10-31T01:12"))).task.last_tick is None
        assert Status.READY not in (await queue.stats("REPORT")).depth
