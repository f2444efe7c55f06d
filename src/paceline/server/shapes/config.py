"""A config on the wire: its request, its versions, and its calendar."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema

from paceline.server.shapes.members import CONFIG_NAME, DURATION, INSTANT
from paceline.server.shapes.shape import Expects, Instant, InvalidMember, Shape
from paceline.slots import PolicyVersion
from paceline.slots.curves import MOST_ENTRIES
from paceline.slots.forecast import impact
from paceline.slots.listing import ListedConfig
from paceline.slots.model import MOST_PER_WINDOW

_CLOCK = {"type": "string", "pattern": "^(([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?|24:00)$"}
_SECONDS = {"type": "number", "minimum": 0.01, "maximum": 366 * 86_400, "multipleOf": 0.001}
_NAME = CONFIG_NAME | {"description": "The config to create or change.", "example": "invoices"}
_REMOVABLE = {"type": ["string", "null"]}


class OpenHours(Shape):
    """From one time of the day to another, on some days of the week."""

    days: Annotated[list[Literal["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]], Field(min_length=1)] = Field(
        default_factory=list
    )
    since: Annotated[str, Field(alias="from"), WithJsonSchema(_CLOCK)] = Field(default_factory=str)
    until: Annotated[str, Field(alias="to"), WithJsonSchema(_CLOCK)] = Field(default_factory=str)


class CurveEntry(OpenHours):
    """The limit of windows that touch these hours. Where several hold, the lowest counts."""

    max: Annotated[int, Field(ge=1, le=MOST_PER_WINDOW)]


class Blackout(Shape):
    """A time that is closed."""

    since: Annotated[str, Field(alias="from"), WithJsonSchema(INSTANT)]
    until: Annotated[str, Field(alias="to"), WithJsonSchema(INSTANT)]


class Calendar(Shape):
    """Open time; null, always. Work is deferred to it, never dropped."""

    zone: Annotated[str, Field(min_length=1, description="An IANA name, such as America/New_York.")]
    open: Annotated[
        list[OpenHours],
        Field(
            min_length=1,
            max_length=1000,
            description="When it is open; left out, day and night. `to` at or before `from` is the next day.",
        ),
    ] = Field(default_factory=list)
    holidays: Annotated[
        str | None,
        WithJsonSchema(_REMOVABLE | {"description": "A country whose bank holidays are closed: US, US-NY."}),
    ] = None
    blackouts: Annotated[list[Blackout], Field(max_length=1000)] = Field(default_factory=list)


class ConfigRequest(Shape):
    """A member that is not given stays as it is; `null` removes it. A new config needs `maxPerWindow` and the window's
    length, as `windowSize` or as `windowSizeSecs`."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["windowSize", "windowSizeSecs"]}})

    # The rules are those of `slots.WindowPolicy`, which checks every member but for the window in seconds.
    config_name: Annotated[str, WithJsonSchema(_NAME), Expects("a text of 1 to 128 characters")]
    max_per_window: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_PER_WINDOW})] = None
    window_size: Annotated[Any, WithJsonSchema(DURATION)] = None
    window_size_secs: Annotated[float, Field(strict=True), WithJsonSchema(_SECONDS), Expects("a number of seconds")] = (
        Field(default_factory=float)
    )
    spread: Annotated[Any, WithJsonSchema(_REMOVABLE | {"enum": ["jitter", "even", None]})] = None
    calendar: Annotated[
        dict[str, Any] | None,
        WithJsonSchema(Calendar.request_schema() | {"type": ["object", "null"]}),
        Expects("an object"),
    ] = None
    max_delay: Annotated[Any, WithJsonSchema(DURATION | _REMOVABLE)] = None
    curve: Annotated[
        list[Any] | None,
        WithJsonSchema(
            {
                "type": ["array", "null"],
                "items": CurveEntry.request_schema(),
                "maxItems": MOST_ENTRIES,
                "description": "The limit by time of day and weekday, in the calendar's zone or else in UTC.",
            }
        ),
        Expects("a list"),
    ] = None
    first_window: Annotated[Any, WithJsonSchema(_REMOVABLE | {"enum": ["proportional", "whole", None]})] = None
    follow: Annotated[
        str | None,
        WithJsonSchema(
            {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": 64,
                "description": "A downstream: `maxPerWindow` follows what it takes, by re-plans.",
            }
        ),
        Expects("the name of a downstream, or null"),
    ] = None
    dry_run: Annotated[
        bool,
        Field(strict=True, description="Say what the change would do to booked slots, and change nothing."),
        Expects("true or false"),
    ] = False

    def changes(self) -> dict[str, Any]:
        """The given members, by the names of `WindowPolicy`.

        Raises:
            InvalidMember: the window's length is given twice, or is no whole number of milliseconds.
        """
        given = {
            name: getattr(self, name)
            for name in self.model_fields_set
            if not name.startswith(("window", "config", "dry"))
        }
        if {"window_size", "window_size_secs"} <= self.model_fields_set:
            raise InvalidMember("windowSize", "and windowSizeSecs say the same; give one of the two")
        if "window_size" in self.model_fields_set:
            given["window"] = self.window_size
        if "window_size_secs" in self.model_fields_set:
            given["window"] = self._window()
        return given

    def _window(self) -> timedelta:
        seconds = self.window_size_secs
        if not 0.01 <= seconds <= 366 * 86_400:
            raise InvalidMember("windowSizeSecs", "must be from 0.01 to 31622400 seconds")
        milliseconds = round(seconds * 1000)
        if abs(milliseconds - seconds * 1000) > 1e-6:
            raise InvalidMember("windowSizeSecs", "must be a whole number of milliseconds")
        return timedelta(milliseconds=milliseconds)


class ChangeWarning(Shape):
    """An effect of a change on booked slots."""

    code: str
    slots: int
    detail: str


class Config(Shape):
    """One version of a config. After a change with `dryRun`, the version that it would make."""

    config_name: str
    version: int
    active: bool
    max_per_window: int
    window_size: str
    spread: str
    calendar: Calendar | None
    max_delay: str | None
    curve: list[CurveEntry] | None
    first_window: str
    follow: str | None
    full_max_per_window: int | None
    """What `maxPerWindow` was lowered from, for the downstream that it follows."""
    created_at: Instant
    dry_run: bool = False
    warnings: list[ChangeWarning] = Field(default_factory=list)
    template: Annotated[str | None, Field(description="In a page of configs: the template that it follows.")] = None
    followers: Annotated[int, Field(description="In a page of configs: how many follow it, if it is a template.")] = 0

    @classmethod
    def of_version(cls, version: PolicyVersion, *, active: bool = True) -> Self:
        return cls.of(version, config_name=version.name, active=active, **version.policy.to_json())

    @classmethod
    def of_listed(cls, listed: ListedConfig) -> Self:
        config = cls.of_version(listed.version)
        config.template, config.followers = listed.template, listed.followers
        return config

    @classmethod
    def of_change(cls, version: PolicyVersion, warnings: Sequence[impact.ChangeWarning], *, dry_run: bool) -> Self:
        """The response to a change, or to a dry run of one."""
        config = cls.of_version(version, active=not dry_run)
        if dry_run:
            config.dry_run = True
        if dry_run or warnings:
            config.warnings = [ChangeWarning.of(warning) for warning in warnings]
        return config


class Configs(Shape):
    """The active versions of configs, by name."""

    configs: list[Config]
    next: Annotated[str | None, Field(description="The cursor of the next page; null if this is the last.")] = None


class History(Shape):
    """Every version of a config, newest first."""

    config_name: str
    versions: list[Config]

    @classmethod
    def of_versions(cls, versions: list[PolicyVersion]) -> Self:
        shapes = [Config.of_version(version, active=version is versions[0]) for version in versions]
        return cls(config_name=versions[0].name, versions=shapes)


class Flushed(Shape):
    """The cache of policies is empty."""

    flushed: bool
