"""The table of outcomes in `docs/explanation/payments.md` matches the code."""

from __future__ import annotations

from pathlib import Path

from paceline.apps.payments.downstream import outcomes

PAGE = Path(__file__).parents[5] / "docs/explanation/payments.md"


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


def test_every_answer_of_the_bank() -> None:
    expected = [[rule.answers, named(rule.verdict), rule.consequence] for rule in outcomes.TABLE]
    assert table("answer") == expected
