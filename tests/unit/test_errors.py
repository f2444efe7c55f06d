"""The tree of errors: every one is drawn, survives a pickle, and says what it was made of."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from paceline import errors
from paceline.errors import (
    CostExceedsCapacity,
    InvalidInput,
    MissingExtra,
    NotFound,
    PacelineError,
    RateLimitExceeded,
    SlotCancelled,
    SlotInUse,
    SlotOwned,
    SlotsExhausted,
    StaleVersion,
    StoreRefused,
    TaskFailed,
)
from paceline.limits.model import Decision

AT = datetime(2030, 1, 1, tzinfo=UTC)
MADE = {
    InvalidInput: ("field", "use 1"),
    errors.ConfigurationError: ("field", "use 1"),
    MissingExtra: ("this", "redis,sms"),
    CostExceedsCapacity: ("gold", 7, 5),
    NotFound: ("plan", "gold"),
    SlotOwned: ("e1", "payments"),
    SlotInUse: ("e1", "it has begun"),
    SlotsExhausted: ("bank", AT),
    RateLimitExceeded: (Decision.of(False, 0, 5, 1_500_000, 0, "gold"),),
    TaskFailed: ("SEND", "inv-1", "DEAD_LETTER", "ValueError: no"),
    StoreRefused: ("redis_url", "wrong password"),
    StaleVersion: ("bank", 3),
    SlotCancelled: (("e1", "e2"), (("PAYMENT", "p1"),)),
}


def below(kind: type[PacelineError]) -> Iterator[type[PacelineError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from below(child)


ALL = list(below(PacelineError))


def test_the_drawn_tree_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    branch: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^( *(?:[│ ]  *)*(?:[├└]── )?)(\w+)(?:  +.*)?$", line)
        if match is None or not hasattr(errors, match[2]):
            continue
        depth = len(match[1])
        branch = [(at, name) for at, name in branch if at < depth]
        if branch:
            drawn[match[2]] = branch[-1][1]
        branch.append((depth, match[2]))
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in ALL}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_each_survives_a_pickle(kind: type[PacelineError]) -> None:
    """Task queues and process pools carry errors so."""
    error = kind(*MADE.get(kind, ("a message",)))  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_without_a_message_an_error_says_what_its_kind_is() -> None:
    assert str(errors.StoreUnavailable()) == "A store can't be reached or did not answer in time."
    assert str(errors.StoreUnavailable("down")) == "down"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (InvalidInput("limit", "use 1"), "limit: use 1"),
        (MissingExtra("this", "redis"), "this needs: pip install 'paceline[redis]'"),
        (NotFound("plan", "gold"), "no plan named 'gold'"),
        (SlotOwned("e", None), "the slot of 'e' belongs to no application"),
        (SlotOwned("e", "payments"), "the slot of 'e' belongs to the application 'payments': cancel it there"),
        (SlotsExhausted("bank", AT), "no slot of 'bank' is free before its horizon"),
        (
            SlotsExhausted("bank", None),
            "no slot of 'bank' is free before 2200-01-01, where the time that is taken ends",
        ),
        (StaleVersion("bank", None), "'bank' does not exist; look at it again before you change it"),
        (StaleVersion("bank", 3), "'bank' is at version 3; look at it again before you change it"),
    ],
)
def test_messages(error: PacelineError, says: str) -> None:
    assert str(error) == says


def test_several_events_are_counted() -> None:
    assert "'a' was cancelled" in str(SlotCancelled(["a"]))
    assert "'a' (and those of 2 more events) was cancelled" in str(SlotCancelled(["a", "b", "c"]))


def test_the_standard_errors_catch_theirs() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(NotFound, LookupError)
    assert issubclass(MissingExtra, ImportError)
