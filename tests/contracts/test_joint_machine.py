"""Random bookings under one and several configs, bursts, raises, resizes, calendars, cancels, re-plans and prunes, on
every store, against a naive model.

The model knows no windows that have room, no runs and no jumps. It keeps a list of booked times per config, and asks
of one instant after another whether every config admits it: an instant is worth asking if it is the event's own or
begins a window of one of the configs. A re-plan asks the same of every slot, in order, one after another.

Several stores work on one database, one step each in turn, as processes do: what one of them remembers of a config, or
guesses of its windows, may have been changed by another. Two of the configs follow a template.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from heapq import merge
from itertools import count
from typing import Any, TypeVar, cast
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from paceline.durations import LATEST_MS
from paceline.slots.booking.packing import Booking
from paceline.slots.calendars import Calendar
from paceline.slots.model import AssignedSlot, BookingGroup, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import Replan, ReplanStore, Sizes, Span, replan
from paceline.slots.stores import slot_stores
from tests.contracts.conftest import slot_store_url
from tests.contracts.replanned import Busy
from tests.contracts.slot_windows import CURVE, check_windows, naive_limit
from tests.effort import examples

R = TypeVar("R")

T_MS = 4_076_150_400_000
"""2099-03-01T16:00:00Z, which the curve's clock times are around: ahead of every store's own clock, by which re-plans
know what is to come."""
START = T_MS - 10_000
BURST = 260
CONFIGS, FOLLOWERS = 4, 2
STORES = 2
CLOSED = [(), (), ((T_MS + 6000, T_MS + 41_000),), ((T_MS - 3000, T_MS + 1500), (T_MS + 90_000, T_MS + 95_250))]
"""Blackouts, as epoch milliseconds: the model needs no calendar to know what is closed."""

policies = st.builds(
    WindowPolicy,
    st.integers(1, 5),
    st.sampled_from(["PT1S", "PT4S", "PT0.5S", "PT7S", "PT30S"]),
    spread=st.sampled_from(["jitter", "even"]),
    calendar=st.sampled_from(CLOSED).map(lambda closed: Calendar("UTC", blackouts=closed) if closed else None),
    max_delay=st.sampled_from([None, None, None, None, "PT60S", "PT3S"]),
    curve=st.sampled_from([None, CURVE]),
)
times = st.one_of(st.just(T_MS), st.integers(T_MS - 2000, T_MS + 40_000))
name_sets = st.lists(st.integers(0, CONFIGS + FOLLOWERS - 1), min_size=1, max_size=CONFIGS, unique=True)
groups = st.lists(st.tuples(name_sets, st.lists(times, min_size=1, max_size=4)), min_size=1, max_size=6)


class Book:
    """One config as the model sees it: a policy, and when its slots are."""

    def __init__(self, policy: WindowPolicy, times: Sequence[int] = (), gone_until: int = 0) -> None:
        self.policy = policy
        self.times = list(times)
        self.gone_until = gone_until
        """After the last slot that was pruned."""

    @property
    def step(self) -> int:
        return self.policy.window // timedelta(milliseconds=1)

    def admits(self, at: int, effective: int) -> bool:
        """Whether a slot may lie at an instant: the window is open, and less is in it than may be."""
        policy, begin = self.policy, at - at % self.step
        end = begin + self.step
        if not self.is_open(begin):
            return False
        most, low = self.limit(begin), max(begin, effective)
        share = most * (end - low) // self.step
        if self.between(begin, end) >= most or self.between(low, end) >= share:
            return False
        if policy.max_delay is not None:
            last = effective + policy.max_delay // timedelta(milliseconds=1)
            if at > last:
                return False
            if last + 1 < end:
                cut = most * (last + 1 - low) // self.step
                cut = max(cut, min(share, 1)) if begin <= effective else cut
                return self.between(low, last + 1 if begin < effective else end) < cut
        return True

    def between(self, since: int, until: int) -> int:
        """The number of slots in a span."""
        return bisect_left(self.times, until) - bisect_left(self.times, since)

    def limit(self, begin: int) -> int:
        """The most that a window may hold of what is known: nothing, if some of it is gone."""
        return 0 if begin < self.gone_until else naive_limit(self.policy, begin)

    def is_open(self, begin: int) -> bool:
        calendar = self.policy.calendar
        return calendar is None or not any(
            begin < until and since < begin + self.step for since, until in calendar.blackouts
        )

    def admits_move(self, at: int, effective: int, own: int) -> bool:
        """Whether a slot that lies at `own` may lie at another instant: in the same window it is counted already."""
        begin = at - at % self.step
        end = begin + self.step
        if not self.is_open(begin):
            return False
        share = self.limit(begin) * (end - max(begin, effective)) // self.step
        return begin <= own < end or bisect_left(self.times, end) - bisect_left(self.times, begin) < share

    def beginnings(self, after: int) -> Iterator[int]:
        return count(after - after % self.step + self.step, self.step)


def earliest(books: Sequence[Book], effective: int, since: int) -> int | None:
    """The first instant from `since` on that all admit, or None if they never do. Past the last slot and the last
    blackout every window is alike, so nothing is found later that was not found in the first minutes of it."""
    end = max([effective, T_MS + 100_000, *(book.times[-1] for book in books if book.times)]) + 120_000
    for at in merge([since], *(book.beginnings(since) for book in books)):
        if at > end:
            return None
        if all(book.admits(at, effective) for book in books):
            return at
    raise AssertionError("beginnings never end")


def pulled(books: dict[str, Book], slots: Sequence[AssignedSlot], since: int) -> dict[str, int]:
    """By event, an instant in the windows that a re-plan of these slots, given in order, brings each one to."""
    instants: dict[str, int] = {}
    reached = 0
    for slot in slots:
        own = instants[slot.event_id] = slot.scheduled_ms
        mine = [books[name] for name in slot.config_names]
        effective = max(slot.requested_ms, since)
        first = max(effective, reached)
        reached = own
        for at in merge([first], *(book.beginnings(first) for book in mine)) if own >= since else ():
            if at >= own or all(book.admits_move(at, effective, own) for book in mine):
                break
        else:
            continue
        if at >= own or all(at // book.step == own // book.step for book in mine):
            continue
        reached = instants[slot.event_id] = at
        for book in mine:
            book.times.remove(own)
            insort(book.times, at)
    return instants


class Pushed:
    """Where a spread of one config brings slots, by asking of one instant after another.

    All that may move are taken out, and put back one by one, in order: where they were, while that is below the limit
    and nobody before them has gone further; else to the next instant that all their configs admit. In a further config
    a slot may keep its window, however full, until a stranger has come there.
    """

    def __init__(self, books: dict[str, Book], main: str, since: int, created: dict[str, int]) -> None:
        self._books, self._main, self._since, self._created = books, main, since, created
        self._visited: set[tuple[str, int]] = set()
        self._reached = 0
        self.are_all_placed = True
        """Whether each found room before its horizon. If one does not, those before it stay too, to keep the order."""

    def instants(self, slots: Sequence[AssignedSlot]) -> dict[str, int]:
        """By event, an instant in the windows that it comes to."""
        for slot in slots:
            for name in slot.config_names if slot.scheduled_ms >= self._since else ():
                self._books[name].times.remove(slot.scheduled_ms)
        return {slot.event_id: self._put_back(slot) for slot in slots}

    def _put_back(self, slot: AssignedSlot) -> int:
        own = slot.scheduled_ms
        if own < self._since:
            return own
        ends = [own - own % self._books[name].step + self._books[name].step for name in slot.config_names]
        may_stay = min(ends) > self._reached and all(self._may_stay(name, own) for name in slot.config_names)
        found = own if may_stay else self._next(slot)
        at = own if found is None else found
        for name in slot.config_names:
            book = self._books[name]
            insort(book.times, at)
            if at // book.step != own // book.step:
                self._visited.add((name, at - at % book.step))
        if found is None:
            self.are_all_placed = False
        else:
            self._reached = max([self._reached, *(at - at % self._books[name].step for name in slot.config_names)])
        return at

    def _next(self, slot: AssignedSlot) -> int | None:
        """The next instant that suits all; None if there is none before the slot's horizon."""
        own, mine = slot.scheduled_ms, [self._books[name] for name in slot.config_names]
        first = max(own, self._reached)
        last = max([T_MS + 100_000, *(at for book in self._books.values() for at in book.times[-1:])]) + 120_000
        for at in merge([first], *(book.beginnings(first) for book in mine)):
            if at > max(last, first):
                return None
            if all(self._admits(name, at, slot) for name in slot.config_names):
                return None if any(self._is_beyond(book, at, slot) for book in mine) else at
        raise AssertionError("beginnings never end")

    def _may_stay(self, name: str, own: int) -> bool:
        book = self._books[name]
        is_unvisited = name != self._main and (name, own - own % book.step) not in self._visited
        return is_unvisited or self._held(book, own) < book.limit(own - own % book.step)

    def _admits(self, name: str, at: int, slot: AssignedSlot) -> bool:
        book = self._books[name]
        begin = at - at % book.step
        if not book.is_open(begin):
            return False
        if name != self._main and at // book.step == slot.scheduled_ms // book.step and self._may_stay(name, at):
            return True
        late = max(begin, slot.requested_ms) if name != self._main else begin
        return self._held(book, at) < book.limit(begin) * (begin + book.step - late) // book.step

    def _is_beyond(self, book: Book, at: int, slot: AssignedSlot) -> bool:
        if book.policy.max_delay is None or at // book.step == slot.scheduled_ms // book.step:
            return False
        asked = max(slot.requested_ms, self._created[slot.event_id])
        return at - at % book.step + book.step - 1 > asked + book.policy.max_delay // timedelta(milliseconds=1)

    @staticmethod
    def _held(book: Book, at: int) -> int:
        begin = at - at % book.step
        return bisect_left(book.times, begin + book.step) - bisect_left(book.times, begin)


Stores = Sequence[tuple[SlotStore, ReplanStore]]


def machine_on(stores: Stores, loop: asyncio.AbstractEventLoop) -> type[RuleBasedStateMachine]:
    """The machine's class for one database; every run has configs of its own in it."""

    class JointMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            run = uuid4().hex
            # Of names in no order of their own: locks are taken by name, windows are listed as named.
            self.names = [f"{letter}-{run}" for letter in "bADc"]
            self.template = f"C-{run}-*"
            self.names += [f"C-{run}-{number}" for number in range(FOLLOWERS)]
            self.turns = count()
            self.books = [Book(WindowPolicy(2, "PT4S")) for _ in self.names]
            self.booked: dict[str, AssignedSlot] = {}
            self.created: dict[str, int] = {}
            self.now = START
            self.serial = count()
            for name, book in zip([*self.names[:CONFIGS], self.template], self.books, strict=False):
                self.run(self.store.configure(name, book.policy, now_ms=self.now))

        @property
        def store(self) -> SlotStore:
            """The next one."""
            return stores[next(self.turns) % len(stores)][0]

        def run(self, work: Coroutine[Any, Any, R]) -> R:
            return loop.run_until_complete(work)

        @rule(chosen=name_sets, at=times)
        def burst(self, chosen: list[int], at: int) -> None:
            self.book(chosen, [at] * BURST)

        @rule(chosen=name_sets, requested=st.lists(times, min_size=1, max_size=12))
        def book(self, chosen: list[int], requested: list[int]) -> None:
            self.book_groups([(chosen, requested)])

        @rule(groups=groups)
        def book_groups(self, groups: list[tuple[list[int], list[int]]]) -> None:
            asked = [
                BookingGroup(
                    tuple(self.names[index] for index in chosen),
                    [SlotRequest(f"{self.names[0]}-{next(self.serial)}", at) for at in requested],
                )
                for chosen, requested in groups
            ]
            outcomes = self.run(self.store.book_groups(asked, now_ms=self.now, template_configs=100))
            for group, bookings in zip(asked, outcomes, strict=True):
                self.check_bookings(group.names, group.requests, bookings)

        def check_bookings(
            self, names: Sequence[str], requests: Sequence[SlotRequest], bookings: Sequence[Booking]
        ) -> None:
            books = [self.books[self.names.index(name)] for name in names]
            before = (-1, -1)
            for request, booking in zip(requests, bookings, strict=True):
                effective = max(request.requested_ms, self.now)
                # A burst is for one instant, and nothing becomes free meanwhile: each looks on from the one before.
                expected = earliest(books, effective, before[1] if before[0] == effective else effective)
                if expected is None:
                    assert not isinstance(booking, AssignedSlot)
                    continue
                assert isinstance(booking, AssignedSlot)
                before = effective, expected
                at = booking.scheduled_ms
                assert booking.config_names == tuple(names)
                assert [window.window_start_ms for window in booking.windows] == [
                    expected - expected % book.step for book in books
                ]
                assert at >= expected
                assert all(book.admits(at, effective) for book in books)
                assert all(at - at % book.step == expected - expected % book.step for book in books)
                for book in books:
                    insort(book.times, at)
                self.booked[request.event_id] = booking
                self.created[request.event_id] = self.now

        @rule(chosen=name_sets, pick=st.integers(0, 10**6), at=times)
        def ask_again(self, chosen: list[int], pick: int, at: int) -> None:
            if self.booked:
                event_id = sorted(self.booked)[pick % len(self.booked)]
                names = [self.names[index] for index in chosen]
                (booking,) = self.run(self.store.book(names, [SlotRequest(event_id, at)], now_ms=self.now))
                assert booking == self.booked[event_id]._replace(existing=True)

        @rule(pick=st.integers(0, 10**6), many=st.sampled_from([1, 1, 7, 60]))
        def cancel(self, pick: int, many: int) -> None:
            events = sorted(self.booked)
            for event_id in events[pick % len(events) :][:many] if events else ():
                slot = self.booked.pop(event_id)
                assert self.run(self.store.cancel(event_id)) == slot._replace(existing=True)
                for name in slot.config_names:
                    self.books[self.names.index(name)].times.remove(slot.scheduled_ms)

        @rule(index=st.integers(0, CONFIGS - 1), policy=policies)
        def change(self, index: int, policy: WindowPolicy) -> None:
            self.books[index].policy = policy
            self.run(self.store.configure(self.names[index], policy, now_ms=self.now))

        @rule(policy=policies)
        def change_template(self, policy: WindowPolicy) -> None:
            for book in self.books[CONFIGS:]:
                book.policy = policy
            self.run(self.store.configure(self.template, policy, now_ms=self.now))

        @rule(index=st.integers(0, CONFIGS - 1), limit=st.integers(1, 6))
        def raise_or_lower(self, index: int, limit: int) -> None:
            shape = self.books[index].policy
            self.change(index, replace(shape, max_per_window=limit))

        @rule(index=st.integers(0, CONFIGS - 1), more=st.integers(0, 5), in_pieces=st.booleans())
        def pull_forward(self, index: int, more: int, in_pieces: bool) -> None:
            if more:
                self.raise_or_lower(index, self.books[index].policy.max_per_window + more)
            before = self.slots_of(index)
            # Of its own: what the re-plan does to the real lists is read from the store afterwards.
            books = self.copied_books()
            expected = pulled(books, before, self.now)
            tried = self.replan(index, Direction.EARLIER, dry_run=True)
            done = self.replan(index, Direction.EARLIER, in_pieces=in_pieces)
            planned = {move.slot.event_id: move.scheduled_ms for move in tried.moves}
            assert done.examined == tried.examined == len(before)
            for old in before:
                new = self.booked[old.event_id]
                assert new.scheduled_ms <= old.scheduled_ms, "never later"
                assert new.scheduled_ms >= old.requested_ms
                for at in (new.scheduled_ms, planned.get(old.event_id, old.scheduled_ms)):
                    for name in old.config_names:
                        step = books[name].step
                        assert at // step == expected[old.event_id] // step
            self.keeps_order(before)

        @rule(index=st.integers(0, CONFIGS - 1), less=st.integers(0, 5))
        def spread(self, index: int, less: int) -> None:
            if less:
                self.raise_or_lower(index, max(1, self.books[index].policy.max_per_window - less))
            before = self.slots_of(index)
            held = [(book, list(book.times)) for book in self.books]
            books = self.copied_books()
            model = Pushed(books, self.names[index], self.now, self.created)
            expected = model.instants(before)
            tried = self.replan(index, Direction.SPREAD, dry_run=True)
            planned = {move.slot.event_id: move.scheduled_ms for move in tried.moves}
            for old in before if model.are_all_placed else ():
                at = planned.get(old.event_id, old.scheduled_ms)
                for name in old.config_names:
                    assert at // books[name].step == expected[old.event_id] // books[name].step, "as the model spreads"
            done = self.replan(index, Direction.SPREAD)
            assert done.moved == tried.moved
            assert {old.event_id: self.booked[old.event_id].scheduled_ms for old in before} == {
                old.event_id: planned.get(old.event_id, old.scheduled_ms) for old in before
            }
            for old in before:
                assert self.booked[old.event_id].scheduled_ms >= old.scheduled_ms, "never earlier"
            for book, times in held:
                windows = {at - at % book.step for at in book.times if at >= self.now}
                for begin in windows:
                    count, earlier = (
                        bisect_left(some, begin + book.step) - bisect_left(some, begin) for some in (book.times, times)
                    )
                    limit = book.limit(begin)
                    assert count <= max(limit, earlier), "nothing comes into a full window"
                    assert count <= earlier or book.is_open(begin)
                    if book is self.books[index] and begin >= self.now and model.are_all_placed:
                        assert count <= limit, "nothing is left over the limit"
            self.keeps_order(before)

        def copied_books(self) -> dict[str, Book]:
            copies = [Book(book.policy, book.times, book.gone_until) for book in self.books]
            return dict(zip(self.names, copies, strict=True))

        def slots_of(self, index: int) -> list[AssignedSlot]:
            """The slots of a config that are ahead, or in the window of now, in order."""
            first = self.now - self.now % self.books[index].step
            slots = [
                slot
                for slot in self.booked.values()
                if self.names[index] in slot.config_names and slot.scheduled_ms >= first
            ]
            return sorted(slots, key=lambda slot: (slot.scheduled_ms, slot.event_id))

        def keeps_order(self, before: Sequence[AssignedSlot]) -> None:
            times = [self.booked[slot.event_id].scheduled_ms for slot in before]
            assert times == sorted(times)

        def replan(self, index: int, direction: Direction, *, dry_run: bool = False, in_pieces: bool = False) -> Replan:
            # The store's clock is years before these slots; `from` is what now is to the machine.
            span = Span(self.names[index], from_ms=self.now)
            replans = stores[next(self.turns) % len(stores)][1]
            moved_by = cast(ReplanStore, Busy(replans)) if in_pieces else replans
            result = self.run(replan(moved_by, span, direction, dry_run=dry_run))
            stored = {slot.event_id: slot for slot in self.run(self.store.booked(LATEST_MS - 1, None, 1_000_000))}
            if dry_run:
                assert all(stored[event_id] == slot._replace(existing=True) for event_id, slot in self.booked.items())
                return result
            for event_id, old in self.booked.items():
                new = self.booked[event_id] = stored[event_id]
                assert new.config_names == old.config_names
                if new.scheduled_ms == old.scheduled_ms:
                    continue
                assert self.names[index] in old.config_names
                assert min(old.scheduled_ms, new.scheduled_ms) >= self.now
                for window in new.windows:
                    book = self.books[self.names.index(window.config_name)]
                    assert window.window_start_ms == new.scheduled_ms - new.scheduled_ms % book.step
                    book.times.remove(old.scheduled_ms)
                    insort(book.times, new.scheduled_ms)
            return result

        @rule(step=st.sampled_from([1, 250, 1500, 9000, 35_000]))
        def pass_time(self, step: int) -> None:
            self.now += step

        @rule()
        def prune(self) -> None:
            self.run(self.store.prune(self.now))
            kept = {slot.event_id for slot in self.run(self.store.booked(LATEST_MS - 1, None, 1_000_000))}
            for event_id in set(self.booked) - kept:
                slot = self.booked.pop(event_id)
                for name in slot.config_names:
                    book = self.books[self.names.index(name)]
                    assert slot.scheduled_ms < self.now - self.now % book.step, "its windows have ended"
                    del book.times[bisect_right(book.times, slot.scheduled_ms) - 1]
                    book.gone_until = max(book.gone_until, slot.scheduled_ms + 1)
            for name, book in zip(self.names[CONFIGS:], self.books[CONFIGS:], strict=True):
                if self.run(self.store.active_version(name)) is None:
                    # Idle, and deleted: what is missing is noted by the store's own clock, which is long before.
                    book.gone_until = 0

        def teardown(self) -> None:
            self.run(self.store.prune(LATEST_MS - 1))

        @invariant()
        def counters_agree(self) -> None:
            for name, book in zip(self.names, self.books, strict=True):
                first = self.now - self.now % book.step
                if self.run(self.store.active_version(name)) is None:
                    assert name.startswith("C")
                    assert bisect_left(book.times, first) == len(book.times)
                    continue
                held = self.run(check_windows(self.store, name, self.now, is_partly_gone=first < book.gone_until))
                assert sum(held.values()) == len(book.times) - bisect_left(book.times, first)

    return JointMachine


@pytest.mark.parametrize(("kind", "requested"), [("memory", 16), ("sqlite", 8), ("postgresql", 8), ("oracle", 2)])
def test_every_store_does_what_the_naive_model_does(kind: str, requested: int, request: pytest.FixtureRequest) -> None:
    url = slot_store_url(kind, request)
    loop = asyncio.new_event_loop()
    # A database in memory is one store's own.
    stores = [loop.run_until_complete(slot_stores(url)) for _ in range(1 if kind == "memory" else STORES)]
    for _, replans in stores:
        replans.sizes = Sizes(min_slots=4, pause=0)
    try:
        run_state_machine_as_test(
            machine_on(stores, loop),
            settings=settings(
                max_examples=examples(requested),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.generate, Phase.shrink],
            ),
        )
    finally:
        for store, _ in stores:
            loop.run_until_complete(store.close())
        loop.close()
