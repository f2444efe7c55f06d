"""Histories in several real processes on one database, judged from outside by the naive model.

In each round all processes do the same kind of thing at once: book under random sets of configs, some of one template;
or cancel. Between rounds one process changes a config, or plans one again. No process knows of the others, and the
model knows only their answers and what the database holds. It asks: is there an order of the bookings in which each
got the earliest place that was free? Was each refused one refused because nothing was free? Has each event one slot,
whoever asked, and does every counter agree with the slots?
"""

from __future__ import annotations

import itertools
import json
import random
import select
import sqlite3
import subprocess
import sys
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paceline.slots.model import AssignedSlot, SlotWindow, WindowPolicy
from tests.contracts.conftest import slot_store_url
from tests.contracts.test_joint_machine import T_MS, Book, Pushed, earliest, pulled
from tests.effort import examples, is_thorough

PROCESSES = 4
ROUNDS = 16 if is_thorough() else 8
CALLS = 10
"""Bookings of each process in a round."""
FOLLOWERS = 3
SIZES = ["PT1S", "PT4S", "PT0.5S", "PT30S"]
LONGEST_SECONDS = 120
"""Within which a process answers."""
MAX_STEPS = 1000
"""The steps of the search for an order."""

Key = tuple[tuple[str, ...], int]
"""The configs of a booking and its requested time: what tells bookings of one round apart."""


class Process:
    """A process of callers."""

    def __init__(self, url: str) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.contracts.slot_process", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self._line() == "ready"

    def begin(self, calls: Sequence[Mapping[str, Any]]) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(calls) + "\n")
        self._program.stdin.flush()

    def answers(self) -> list[Any]:
        answers: list[Any] = json.loads(self._line())
        return answers

    def stop(self) -> None:
        self._program.communicate(timeout=60)

    def _line(self) -> str:
        assert self._program.stdout is not None
        readable, _, _ = select.select([self._program.stdout], [], [], LONGEST_SECONDS)
        assert readable, f"no line within {LONGEST_SECONDS} s"
        return self._program.stdout.readline().strip()


@contextmanager
def processes_on(url: str) -> Iterator[list[Process]]:
    first = Process(url)  # alone: it makes the tables
    started = [first]
    try:
        first.wait_until_ready()
        started += [Process(url) for _ in range(PROCESSES - 1)]
        for process in started[1:]:
            process.wait_until_ready()
        yield started
    finally:
        for process in started:
            process.stop()


class History:
    """One random history under configs of its own."""

    def __init__(self, url: str, processes: Sequence[Process], seed: int) -> None:
        self._url, self._processes = url, processes
        self._chance = random.Random(seed)
        run = uuid4().hex
        self._template = f"C-{run}-*"
        self._owned = [f"{letter}-{run}" for letter in "bAd"]
        self._names = [*self._owned, *(f"C-{run}-{number}" for number in range(FOLLOWERS))]
        self._books = {name: Book(WindowPolicy(2, "PT4S")) for name in self._names}
        self._slots: dict[str, AssignedSlot] = {}
        self._serial = 0
        for name in [*self._owned, self._template]:
            self._change(name)

    def run(self) -> None:
        for _ in range(ROUNDS):
            self._book()
            self._chance.choice([self._cancel, self._change_one, self._replan, self._book])()
            self.check_database()

    # -- rounds --------------------------------------------------------------------------------------------------

    def _book(self) -> None:
        plans = [self._bookings() for _ in self._processes]
        for first, second in itertools.pairwise(plans):
            # The same event, asked for in two processes at once.
            second.append(self._chance.choice([call for call in first if "book" in call]))
        if self._slots:  # … and one that has its slot
            known = self._chance.choice(sorted(self._slots))
            plans[0].append({"book": known, "names": [self._chance.choice(self._names)], "at": T_MS})
        asked: dict[str, Key] = {}
        answered: dict[str, Any] = {}
        for calls, answers in zip(plans, self._at_once(plans), strict=True):
            for call, answer in zip(calls, answers, strict=True):
                names = tuple(call["names"])
                events = [(call["book"], call["at"])] if "book" in call else call["book_many"]
                for (event_id, at), one in zip(events, [answer] if "book" in call else answer, strict=True):
                    assert answered.setdefault(event_id, one) == one, "one answer, whoever asks"
                    asked[event_id] = names, at
        self._judge(asked, answered)

    def _bookings(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        for nth in range(CALLS):
            names = self._chance.sample(self._names, self._chance.choice([1, 1, 2, 2, 3]))
            at = T_MS + self._chance.choice([0, 0, 0, 30_000, 60_000])
            if nth % 5:
                calls.append({"book": self._event(), "names": names, "at": at})
            else:
                calls.append({"book_many": [(self._event(), at) for _ in range(6)], "names": names})
        return calls

    def _event(self) -> str:
        self._serial += 1
        return f"{self._owned[0]}-{self._serial}"

    def _cancel(self) -> None:
        gone = self._chance.sample(sorted(self._slots), min(len(self._slots), 5 * PROCESSES))
        plans = [[{"cancel": event_id} for event_id in gone[first::PROCESSES]] for first in range(PROCESSES)]
        for calls, answers in zip(plans, self._at_once(plans), strict=True):
            for call, answer in zip(calls, answers, strict=True):
                slot = self._slots.pop(call["cancel"])
                assert answer == shown(slot)
                for name in slot.config_names:
                    self._books[name].times.remove(slot.scheduled_ms)

    def _change_one(self) -> None:
        self._change(self._chance.choice([*self._owned, self._template]))

    def _change(self, name: str) -> None:
        limit, window = self._chance.randint(1, 5), self._chance.choice(SIZES)
        spread, delay = self._chance.choice(["jitter", "even"]), self._chance.choice([None, None, "PT60S"])
        fields = {"max_per_window": limit, "window": window, "spread": spread, "max_delay": delay}
        self._alone({"change": name, "fields": fields})
        for changed in self._names[len(self._owned) :] if name == self._template else [name]:
            self._books[changed].policy = WindowPolicy(limit, window, spread, max_delay=delay)

    def _replan(self) -> None:
        name, direction = self._chance.choice(self._names), self._chance.choice(["earlier", "spread"])
        slots = [slot for slot in self._slots.values() if name in slot.config_names]
        slots.sort(key=lambda slot: (slot.scheduled_ms, slot.event_id))
        if not slots:
            return
        books = {name: Book(book.policy, book.times) for name, book in self._books.items()}
        are_all_placed = True
        if direction == "earlier":
            expected = pulled(books, slots, T_MS)
        else:
            model = Pushed(books, name, T_MS, dict.fromkeys(self._slots, 0))
            expected = model.instants(slots)
            are_all_placed = model.are_all_placed
        self._alone({"replan": name, "since": T_MS, "direction": direction})
        times = self._stored()[0]
        for old in slots:
            at = times[old.event_id]
            assert at <= old.scheduled_ms if direction == "earlier" else at >= old.scheduled_ms
            windows = [SlotWindow(each, 0, at - at % self._books[each].step) for each in old.config_names]
            for window in windows if are_all_placed else ():
                step = self._books[window.config_name].step
                assert at // step == expected[old.event_id] // step, "as the model plans it again"
            if at == old.scheduled_ms:
                continue
            for each in old.config_names:
                self._books[each].times.remove(old.scheduled_ms)
                insort(self._books[each].times, at)
            self._slots[old.event_id] = _slot(old.event_id, old.requested_ms, windows, at)

    def _alone(self, call: dict[str, Any]) -> None:
        process = self._chance.choice(self._processes)
        process.begin([call])
        process.answers()

    def _at_once(self, plans: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Any]]:
        for process, calls in zip(self._processes, plans, strict=True):
            process.begin(calls)
        return [process.answers() for process in self._processes]

    # -- the model -----------------------------------------------------------------------------------------------

    def _judge(self, asked: Mapping[str, Key], answered: Mapping[str, Any]) -> None:
        """Takes the new slots into the model, if there is an order of the bookings that explains them all."""
        placed: dict[Key, list[int]] = defaultdict(list)
        refused: set[Key] = set()
        for event_id, answer in answered.items():
            if event_id in self._slots:
                assert answer == shown(self._slots[event_id]), "idempotent"
            elif answer is None:
                refused.add(asked[event_id])
            else:
                windows = [SlotWindow(name, 0, start) for name, start in answer[0]]
                names = tuple(window.config_name for window in windows)
                placed[names, asked[event_id][1]].append(answer[1])
                self._slots[event_id] = _slot(event_id, asked[event_id][1], windows, answer[1])
                for window in windows:
                    assert window.window_start_ms == answer[1] - answer[1] % self._books[window.config_name].step
        assert Order(self._books).explains(placed), f"no order of these bookings explains them: {dict(placed)}"
        for names, at in refused:
            assert earliest([self._books[name] for name in names], at, at) is None, "refused, though there is room"

    def check_database(self) -> None:
        """Compares slots and counters with the model."""
        times, counted = self._stored()
        assert times == {event_id: slot.scheduled_ms for event_id, slot in self._slots.items()}
        held = Counter(
            (name, at - at % self._books[name].step) for name, book in self._books.items() for at in book.times
        )
        assert counted == held

    def _stored(self) -> tuple[dict[str, int], dict[tuple[str, int], int]]:
        """The time of every slot of this history, and the counters of the windows with slots."""
        prefix = f"{self._owned[0]}-%"
        slots = _rows(self._url, "SELECT event_id, scheduled_at FROM paceline_slot WHERE event_id LIKE $1", prefix)
        counters: dict[tuple[str, int], int] = {}
        for name in self._names:
            rows = _rows(self._url, "SELECT window_start, taken FROM paceline_slot_window WHERE config_name = $1", name)
            counters.update(((name, _ms(start)), taken) for start, taken in rows if taken)
        return {event_id: _ms(at) for event_id, at in slots}, counters


class Order:
    """Looks for an order of bookings that explains where they are: each in the windows with the earliest instant that
    all its configs admit. Tries one kind after another, and goes back where it does not get on."""

    def __init__(self, books: dict[str, Book]) -> None:
        self._books = books
        self._steps = 0

    def explains(self, waiting: dict[Key, list[int]]) -> bool:
        """Whether there is one; the slots are then in the books."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            return False
        if not any(waiting.values()):
            return True
        for (names, requested), times in waiting.items():
            own = [self._books[name] for name in names]
            found = earliest(own, requested, requested) if times else None
            if found is None:
                continue
            fitting = [at for at in times if all(at // book.step == found // book.step for book in own)]
            for at in fitting[:1]:
                assert at >= requested
                times.remove(at)
                for book in own:
                    insort(book.times, at)
                if self.explains(waiting):
                    return True
                times.append(at)
                for book in own:
                    book.times.remove(at)
        return False


def shown(slot: AssignedSlot) -> list[Any]:
    return [[[window.config_name, window.window_start_ms] for window in slot.windows], slot.scheduled_ms]


def _slot(event_id: str, requested_ms: int, windows: Sequence[SlotWindow], at: int) -> AssignedSlot:
    (name, version, start), *others = windows
    return AssignedSlot(event_id, name, version, requested_ms, start, at, False, None, tuple(others))


def _rows(url: str, query: str, value: str) -> list[tuple[Any, ...]]:
    """What the database holds, read without paceline."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(query.replace("$1", "?"), (value,)).fetchall()
    with psycopg.connect(url) as postgres:
        return postgres.execute(query.replace("$1", "%s").encode(), (value,)).fetchall()


def _ms(value: str | datetime) -> int:
    moment = datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value
    return round(moment.timestamp() * 1000)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_do_together_what_some_order_of_their_calls_explains(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = slot_store_url(kind, request)
    with processes_on(url) as processes:

        @settings(
            max_examples=examples(20),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        @given(seed=st.integers(0, 2**32))
        def histories(seed: int) -> None:
            History(url, processes, seed).run()

        histories()
