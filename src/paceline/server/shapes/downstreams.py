"""Downstreams on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, WithJsonSchema

from paceline.downstream.directory import KnownDownstream, Listed
from paceline.server.shapes.shape import Expects, Instant, InvalidMember, Shape

NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 80, "example": "bank"}
_RATE = {
    "type": ["string", "null"],
    "pattern": r"^[1-9]\d{0,3}/(second|minute|hour|day)$",
    "description": "At most the program's own; null ends it.",
    "example": "20/second",
}


class OpenDownstreamBreaker(Shape):
    """An open breaker."""

    reason: str
    since: Instant
    probe_in_secs: float


class DownstreamSample(Shape):
    """What was known at a time: calls and refusals in sum, and what might leave."""

    at: Instant
    calls: int
    throttled: int
    effective_rate: float | None
    state: str
    """`open`, `paused`, or `breaker` if that was open."""


class DownstreamShown(Shape):
    """What all processes know of a downstream."""

    name: str
    rate: str | None
    """The hard rate: the operator's, or the program's own."""
    own_rate: str | None
    effective_rate: float | None
    """Calls per second that may leave now."""
    adaptive: bool
    paused: str | None
    """Why, if an operator paused it."""
    pauses: dict[str, float]
    """Seconds until each key may be called again, as the other side said."""
    breaker: OpenDownstreamBreaker | None
    waiting: int
    """Calls that wait for their turn now, in all processes."""
    calls: int
    throttled: int
    failed: int
    unknown: int
    waited_secs: float
    history: list[DownstreamSample]
    """Of the last calls, every ten seconds and at each change by an operator; the oldest first."""

    @classmethod
    def of_known(cls, known: KnownDownstream) -> Self:
        """As the directory read it."""
        state, breaker = known.state, known.state.breaker
        return cls.of(
            state.totals,
            name=known.name,
            rate=known.rate,
            own_rate=state.hard,
            effective_rate=None if known.effective is None else round(known.effective, 3),
            adaptive=state.estimate is not None,
            waiting=known.waiting,
            paused=state.paused,
            pauses={key: round(seconds, 3) for key, seconds in known.pauses.items()},
            breaker=None
            if breaker is None
            else OpenDownstreamBreaker.of(
                reason=breaker.reason,
                since=breaker.since_us // 1000,
                probe_in_secs=max(round((breaker.probe_us - known.now_us) / 1e6, 3), 0.0),
            ),
            waited_secs=round(state.totals.waited_us / 1e6, 3),
            history=[
                DownstreamSample.of(
                    sample, at=sample.at_s * 1000, effective_rate=sample.effective, state=sample.standing
                )
                for sample in state.samples
            ],
        )


class DownstreamsShown(Shape):
    """All downstreams by name."""

    downstreams: list[DownstreamShown]
    unreachable: list[str]
    """The stores that can't be reached now, `database` or `Redis`: their downstreams are missing."""

    @classmethod
    def of_all(cls, listed: Listed) -> Self:
        """As the directory read them."""
        return cls(
            downstreams=[DownstreamShown.of_known(each) for each in listed.known], unreachable=listed.unreachable
        )


class DownstreamChange(Shape):
    """The switch, and a rate below the program's own; null ends that."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    paused: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None
    rate: Annotated[str | None, WithJsonSchema(_RATE), Expects("a rate such as 20/second, or null")] = None

    def changes(self) -> dict[str, Any]:
        """The members that are given.

        Raises:
            InvalidMember: one is wrong, or none is given.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if not given:
            raise InvalidMember("paused", "give paused, rate, or both")
        if not isinstance(given.get("paused", False), bool):
            raise InvalidMember("paused", "must be true or false")
        if given.get("rate", "-") == "":
            raise InvalidMember("rate", "must be a rate such as 20/second, or null")
        return given
