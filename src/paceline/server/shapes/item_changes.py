"""Changes to items on the wire: the selection, by ids or by a filter, and the change."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from paceline.dispatch.changes import LONGEST_REASON, ResolvedAs
from paceline.dispatch.model import LONGEST_ERROR
from paceline.dispatch.search import FilterOptions, checked_filter
from paceline.dispatch.status import Status
from paceline.dispatch.turns import LAST_PRIORITY
from paceline.durations import parse_instant
from paceline.errors import InvalidInput
from paceline.server.shapes.dispatch import LANE, MAX_IDS
from paceline.server.shapes.members import EVENT_ID, INSTANT
from paceline.server.shapes.shape import Expects, InvalidMember, Shape

PRIORITY: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": LAST_PRIORITY, "description": "0 is first."}
ERROR: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_ERROR,
    "pattern": r"^[^\u0000]+$",
    "description": "What their last errors hold; * stands for any characters.",
}

ERROR_GROUP: dict[str, Any] = ERROR | {"description": "The group of their last errors, as GET …/errors names it."}


class ItemFilterGiven(Shape):
    """What items must have in common; at least one of these."""

    status: Annotated[Any, WithJsonSchema({"enum": list(Status)})] = None
    prefix: Annotated[Any, WithJsonSchema(EVENT_ID | {"description": "What their ids begin with."})] = None
    lane: Annotated[Any, WithJsonSchema(LANE)] = None
    error: Annotated[Any, WithJsonSchema(ERROR)] = None
    since: Annotated[Any, Field(alias="from"), WithJsonSchema(INSTANT)] = None
    until: Annotated[Any, Field(alias="to"), WithJsonSchema(INSTANT)] = None
    error_group: Annotated[Any, WithJsonSchema(ERROR_GROUP)] = None

    def options(self) -> FilterOptions:
        """As `DispatchQueue.cancel` takes it."""
        given = self.model_dump(exclude_unset=True, by_alias=False)
        if not given or any(value is None for value in given.values()):
            raise InvalidMember("filter", "must have at least one member, and none that is null")
        for name, member in (("since", "from"), ("until", "to")):
            if name in given:
                given[name] = parse_instant(given[name], f"filter.{member}")
        options: FilterOptions = given  # type: ignore[assignment]
        try:
            checked_filter(**options)
        except InvalidInput as error:
            raise InvalidMember(f"filter.{error.field}", error.problem) from None
        return options


class Selection(Shape):
    """Which items: by their ids, all or none; or all that match and can be changed."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["ids"]}, {"required": ["filter"]}]})

    ids: Annotated[
        list[Any],
        Field(min_length=1, max_length=MAX_IDS),
        WithJsonSchema({"type": "array", "minItems": 1, "maxItems": MAX_IDS, "items": EVENT_ID}),
        Expects(f"a list of 1 to {MAX_IDS} item ids"),
    ] = Field(default_factory=list)
    filter: Annotated[
        dict[str, Any],
        WithJsonSchema(ItemFilterGiven.request_schema() | {"minProperties": 1}),
        Expects("an object of what the items have in common"),
    ] = Field(default_factory=dict)

    def chosen(self) -> tuple[list[str] | None, FilterOptions]:
        """The ids, or what items must match.

        Raises:
            InvalidInput: both or neither are given, or the filter is wrong.
        """
        if ("ids" in self.model_fields_set) == ("filter" in self.model_fields_set):
            raise InvalidMember("ids", "is required, or filter instead; give one of the two")
        if "ids" in self.model_fields_set:
            return self.ids, {}
        return None, ItemFilterGiven.parse(self.filter, "filter.").options()


class Redirection(Selection):
    """Which items: by their ids, all or none; or all that match and can be changed; or all dead letters."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [name]} for name in ("ids", "filter", "status")]}
    )

    status: Annotated[Any, WithJsonSchema({"enum": ["DEAD_LETTER"]})] = None

    def chosen(self) -> tuple[list[str] | None, FilterOptions]:
        """The ids, or what items must match; neither for all dead letters.

        Raises:
            InvalidInput: none or several of the three are given, another status, or the filter is wrong.
        """
        if "status" not in self.model_fields_set:
            return super().chosen()
        if len(self.model_fields_set) != 1:
            raise InvalidMember("ids", 'is required, or filter, or "status": "DEAD_LETTER"; give one of the three')
        if self.status != Status.DEAD_LETTER:
            raise InvalidMember("status", "must be DEAD_LETTER; name other items by their ids or with filter")
        return None, {}


class Resolved(Shape):
    """Which items, and what became of their attempts in doubt."""

    ids: Annotated[
        list[Any],
        Field(min_length=1, max_length=MAX_IDS),
        WithJsonSchema({"type": "array", "minItems": 1, "maxItems": MAX_IDS, "items": EVENT_ID}),
        Expects(f"a list of 1 to {MAX_IDS} item ids"),
    ]
    outcome: Annotated[Any, WithJsonSchema({"type": "string", "enum": list(ResolvedAs)})]
    reason: Annotated[Any, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": LONGEST_REASON})] = None

    def chosen_reason(self) -> str | None:
        """The reason, if it is given.

        Raises:
            InvalidInput: it is null.
        """
        if "reason" in self.model_fields_set and self.reason is None:
            raise InvalidInput("reason", "must be a text; leave it out if there is none")
        reason: str | None = self.reason
        return reason


class Previewed(Shape):
    """The effect of a change on all items that match."""

    matching: int
    changing: int
    is_whole: Annotated[bool, Field(alias="whole")]
    """False if more match than were examined; then both figures are lower bounds."""


class Rescheduled(Selection):
    """Which items, and their new time, priority or lane: at least one of these."""

    model_config = ConfigDict(
        json_schema_extra={
            # One keyword: of two in `allOf`, generators of clients make types of the same names.
            "oneOf": [
                {"required": [chosen], "anyOf": [{"required": [name]} for name in ("executeAt", "priority", "lane")]}
                for chosen in ("ids", "filter")
            ]
        }
    )

    execute_at: Annotated[Any, WithJsonSchema(INSTANT)] = None
    priority: Annotated[Any, WithJsonSchema(PRIORITY)] = None
    lane: Annotated[Any, WithJsonSchema(LANE)] = None

    def change(self) -> dict[str, Any]:
        """As `DispatchQueue.reschedule` takes it."""
        given = {name for name in ("execute_at", "priority", "lane") if name in self.model_fields_set}
        if not given:
            raise InvalidMember("executeAt", "is required, or priority or lane")
        for name in given:
            if getattr(self, name) is None:
                raise InvalidInput("executeAt" if name == "execute_at" else name, "must not be null")
        at = parse_instant(self.execute_at, "executeAt") if "execute_at" in given else None
        return {"execute_at": at, "priority": self.priority, "new_lane": self.lane}
