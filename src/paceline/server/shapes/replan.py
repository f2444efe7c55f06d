"""A re-plan on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, WithJsonSchema

from paceline.durations import format_instant, from_ms
from paceline.server.shapes.members import CONFIG_NAME, DURATION, INSTANT
from paceline.server.shapes.shape import Expects, Shape
from paceline.slots.model import MOST_PER_WINDOW
from paceline.slots.replan.assignment import Direction
from paceline.slots.replan.run import Replan

_OPTIONAL = {"type": ["string", "null"]}


class ReplanRequest(Shape):
    """Which slots to move, and in which direction."""

    # The rules for names, times and durations are the domain's.
    config_name: Annotated[
        str | None, WithJsonSchema(CONFIG_NAME | _OPTIONAL), Expects("a text of 1 to 128 characters")
    ] = None
    since: Annotated[
        str | None,
        Field(alias="from"),
        WithJsonSchema(INSTANT | _OPTIONAL | {"description": "Only slots from this time on; none moves before it."}),
        Expects("a string such as 2027-03-01T16:00:00Z"),
    ] = None
    until: Annotated[
        str | None,
        Field(alias="to"),
        WithJsonSchema(INSTANT | _OPTIONAL | {"description": "Only slots before this time."}),
        Expects("a string such as 2027-03-01T16:00:00Z"),
    ] = None
    notice: Annotated[
        str | None,
        WithJsonSchema(
            DURATION | _OPTIONAL | {"description": "No slot within so long from now is moved, or moved to; PT1M."}
        ),
        Expects("a duration such as PT1M"),
    ] = None
    direction: Annotated[
        str | None,
        WithJsonSchema(_OPTIONAL | {"enum": [*Direction, None]}),
        Expects(" or ".join(Direction)),
    ] = None
    dry_run: Annotated[
        bool | None,
        Field(strict=True),
        WithJsonSchema({"type": ["boolean", "null"], "description": "Say what would be moved, and move nothing."}),
        Expects("true or false"),
    ] = None

    max_per_window: Annotated[
        int | None,
        Field(strict=True),
        WithJsonSchema(
            {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": MOST_PER_WINDOW,
                "description": "With `dryRun`: what would be moved if this were the limit.",
            }
        ),
        Expects("a whole number"),
    ] = None

    def options(self) -> dict[str, Any]:
        """The arguments of `SlotScheduler.replan`, besides the name."""
        return {
            "since": self.since,
            "until": self.until,
            "notice": self.notice,
            "direction": Direction.EARLIER if self.direction is None else self.direction,
            "dry_run": bool(self.dry_run),
            "max_per_window": self.max_per_window,
        }


class ReplanShown(Shape):
    """The result of a re-plan, or of its dry run."""

    config_name: str
    direction: str
    examined: int
    moved: int
    saved_ms: int = Field(description="How much earlier all moved slots are together; negative after a spread.")
    last_before: str | None
    last_after: str | None
    dry_run: bool

    @classmethod
    def of_replan(cls, replan: Replan) -> Self:
        return cls(
            config_name=replan.config_name,
            direction=replan.direction.value,
            examined=replan.examined,
            moved=replan.moved,
            saved_ms=replan.saved_ms,
            last_before=_instant(replan.last_before_ms),
            last_after=_instant(replan.last_after_ms),
            dry_run=replan.dry_run,
        )


def _instant(ms: int | None) -> str | None:
    return None if ms is None else format_instant(from_ms(ms))
