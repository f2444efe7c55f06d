"""The health of the service and of what it depends on, on the wire."""

from __future__ import annotations

from paceline.server.shapes.shape import Shape


class Check(Shape):
    """One dependency."""

    name: str
    status: str
    data: dict[str, str | int] | None = None


class Health(Shape):
    """UP, or DEGRADED or DOWN with the dependencies that fail."""

    status: str
    checks: list[Check]


class FindingShown(Shape):
    """One check of `paceline doctor`."""

    name: str
    ok: bool
    told: str
    advice: str | None
