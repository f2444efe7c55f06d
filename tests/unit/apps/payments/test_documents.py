"""The tables of `docs/explanation/payments.md` say what the code does."""

from __future__ import annotations

from pathlib import Path

from headgate.apps.payments import lifecycle
from headgate.apps.payments.downstream import outcomes
from headgate.apps.payments.lifecycle import PaymentStatus

PAGE = Path(__file__).parents[4] / "docs/explanation/payments.md"


def table(first: str) -> list[list[str]]:
    """The rows of the table whose first heading is `first`."""
    lines = PAGE.read_text("utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def named(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_every_status_and_what_may_follow_it() -> None:
    expected = [
        [named(status), named(*(after for after in PaymentStatus if after in lifecycle.TRANSITIONS[status]))]
        for status in PaymentStatus
    ]
    assert [[row[0], row[2]] for row in table("status")] == expected


def test_every_event_moves_payment_item_and_slot_as_written() -> None:
    expected = [
        [
            named(row.event),
            row.actor.value,
            f"{named(row.before)} → {named(row.after)}" if row.after is not row.before else named(row.before),
            "" if row.item is None else named(row.item),
            "given back" if row.frees_slot else "",
        ]
        for row in lifecycle.TABLE
    ]
    assert table("event") == expected


def test_every_answer_of_the_bank() -> None:
    expected = [[rule.answers, named(rule.verdict), rule.consequence] for rule in outcomes.TABLE]
    assert table("answer") == expected
