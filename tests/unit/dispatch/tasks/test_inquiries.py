"""Tasks whose attempts may end with an effect that nobody knows, on the queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from paceline import (
    ConfigurationError,
    Discard,
    Done,
    NeverSeen,
    OutcomeUnknown,
    Snooze,
    Tasks,
    current_task,
)
from paceline.dispatch.model import ItemDetail
from paceline.dispatch.status import Status
from paceline.dispatch.tasks.inquiries import checked_unknown


class Bank:
    """Executes payments; its answers may get lost."""

    def __init__(self, *ends: BaseException | str) -> None:
        self.ends = list(ends)
        self.paid: list[str] = []
        self.asked: list[tuple[str, str, bool]] = []

    async def pay(self, invoice: str) -> str:
        self.paid.append(invoice)
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    def asks(self, *answers: Any) -> Callable[[str, str], Any]:
        """An inquiry with these answers, the last one for ever."""
        left = list(answers)

        async def inquire(item_id: str, invoice: str) -> Any:
            self.asked.append((item_id, invoice, current_task().in_doubt))
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return inquire


def reset() -> OutcomeUnknown:
    return OutcomeUnknown("connection reset")


async def paid(bank: Bank, **options: Any) -> ItemDetail:
    return await ended_of(bank.pay, **options)


async def ended_of(function: Callable[..., Any], **options: Any) -> ItemDetail:
    """What becomes of one call."""
    tasks = Tasks("memory://", cancel_seconds=0.05)
    task = tasks.task(name="PAY", **options)(function)
    async with tasks.in_memory() as queue:
        await task.options(key="inv-1").enqueue("seven")
        return await queue.queue.show("PAY", "inv-1")


async def test_by_default_an_unknown_outcome_is_retried_and_counted() -> None:
    bank = Bank(reset(), "ref")
    detail = await paid(bank)
    assert (detail.item.status, detail.item.attempt, len(bank.paid)) == (Status.COMPLETED, 2, 2)
    (attempt,) = detail.attempts
    assert (attempt.outcome, attempt.error) == ("unknown", "connection reset")
    assert attempt.traceback is not None
    assert "OutcomeUnknown" in attempt.traceback


async def test_an_unknown_outcome_is_held_and_the_body_does_not_run_again() -> None:
    bank = Bank(reset())
    detail = await paid(bank, on_unknown="hold")
    assert (detail.item.status, len(bank.paid)) == (Status.UNKNOWN, 1)
    assert (detail.item.last_error, detail.item.unknown_since) == ("unknown: connection reset", detail.item.begun_at)


async def test_an_inquiry_that_finds_it_done_completes_it_without_another_call() -> None:
    bank = Bank(reset())
    detail = await paid(bank, on_unknown="inquire", inquire=bank.asks(Done("ref-7")))
    assert (detail.item.status, detail.result, bank.paid) == (Status.COMPLETED, "ref-7", ["seven"])
    assert bank.asked == [("inv-1", "seven", True)]
    assert detail.item.unknown_since is None


async def test_an_inquiry_may_be_a_plain_function() -> None:
    bank = Bank(reset())
    detail = await paid(bank, on_unknown="inquire", inquire=lambda item_id, invoice: Done(f"{item_id} {invoice}"))
    assert (detail.result, len(bank.paid)) == ("inv-1 seven", 1)


async def test_what_was_never_seen_runs_again_and_a_refusal_is_one_then() -> None:
    bank = Bank(reset(), Discard("no account"))
    detail = await paid(bank, on_unknown="inquire", inquire=bank.asks(NeverSeen()))
    assert (detail.item.status, detail.item.last_error) == (Status.DEAD_LETTER, "no account")
    assert (len(bank.paid), len(bank.asked), detail.item.unknown_since) == (2, 1, None)
    assert [attempt.outcome for attempt in detail.attempts] == ["unknown", "refused"]


async def test_each_unknown_attempt_is_inquired_also_the_last_one() -> None:
    bank = Bank(reset(), reset(), reset())
    never = NeverSeen()
    inquire = bank.asks(never, never, Done("ref"))
    detail = await paid(bank, retries=2, on_unknown="inquire", inquire=inquire)
    assert (detail.item.status, len(bank.paid), len(bank.asked)) == (Status.COMPLETED, 3, 3)


async def test_what_was_never_seen_runs_no_more_often_than_the_task_says() -> None:
    bank = Bank(reset(), reset())
    detail = await paid(bank, retries=1, on_unknown="inquire", inquire=bank.asks(NeverSeen()))
    assert (detail.item.status, len(bank.paid), len(bank.asked)) == (Status.DEAD_LETTER, 2, 2)
    assert detail.item.last_error == "no attempt was ever seen by the other side, and all are used up"


async def test_what_the_other_side_refused_is_a_dead_letter_with_its_reason() -> None:
    bank = Bank(reset())
    detail = await paid(bank, on_unknown="inquire", inquire=bank.asks(Discard("no money")))
    assert (detail.item.status, detail.item.last_error) == (Status.DEAD_LETTER, "no money")
    assert (len(bank.paid), detail.item.unknown_since) == (1, None)


async def test_an_inquiry_is_repeated_until_it_decides_and_costs_no_attempt() -> None:
    bank = Bank(reset())
    answers = Snooze("PT1M"), RuntimeError("no answer"), None, Done("ref")
    detail = await paid(bank, retries=1, on_unknown="inquire", inquire=bank.asks(*answers))
    assert (detail.item.status, len(bank.paid), len(bank.asked)) == (Status.COMPLETED, 1, 4)
    released = [entry.detail for entry in detail.audit if entry.action == "RELEASED"]
    assert released[1:] == [
        "the inquiry failed: RuntimeError: no answer",
        "the inquiry returned None, not Done(result) or NeverSeen()",
    ]


@pytest.mark.parametrize(
    ("answer", "hold_for", "asked"),
    # Virtual time goes on by the pauses.
    [(Snooze("PT2H"), "PT1H", 2), (Snooze("PT2H"), 0, 1), (RuntimeError("no answer"), 0, 1), (None, 0, 1)],
)
async def test_what_no_inquiry_decides_is_a_dead_letter_that_says_unknown(
    answer: Any, hold_for: Any, asked: int
) -> None:
    bank = Bank(reset())
    detail = await paid(bank, on_unknown="inquire", hold_for=hold_for, inquire=bank.asks(answer))
    assert detail.item.status is Status.DEAD_LETTER
    assert (detail.item.last_error or "").startswith("unknown: its hold is over; ")
    assert (len(bank.paid), len(bank.asked)) == (1, asked)
    assert detail.item.unknown_since is not None


async def test_a_task_that_ran_beyond_its_timeout_is_unknown_but_its_own_timeout_error_is_a_failure() -> None:
    async def slow(invoice: str) -> None:
        await asyncio.Event().wait()

    detail = await ended_of(slow, timeout=0.01, on_unknown="hold")
    assert (detail.item.status, detail.item.last_error) == (
        Status.UNKNOWN,
        "unknown: TimeoutError: it ran longer than 0.01 s",
    )
    bank = Bank(TimeoutError("to connect"), "ref")
    detail = await paid(bank, on_unknown="hold")
    assert (detail.item.status, len(bank.paid)) == (Status.COMPLETED, 2)


def inquire(item_id: str) -> Done:
    return Done(item_id)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_unknown": "guess"}, "on_unknown: 'guess' is unknown; use retry, inquire or hold"),
        ({"on_unknown": "inquire"}, "inquire: is required with on_unknown='inquire'"),
        ({"on_unknown": "inquire", "inquire": 7}, "inquire: must be a function"),
        ({"on_unknown": "hold", "inquire": inquire}, "inquire: is only asked with on_unknown='inquire'"),
        ({"hold_for": "PT1H"}, "hold_for: is only for on_unknown='inquire' or 'hold'"),
        ({"on_unknown": "hold", "hold_for": "soon"}, "hold_for: "),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Tasks("memory://").task(**options)
    assert problem in str(error.value)


def test_the_settings_of_a_task() -> None:
    assert checked_unknown("retry", None, None) == {"on_unknown": "retry"}
    assert checked_unknown("inquire", inquire, "1h") == {"on_unknown": "inquire", "hold_for_secs": 3600}
