"""Where the workers of a test work: a database, and perhaps a namespace of Temporal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paceline.dispatch.engines.temporal.client import TemporalConnection

SITES = ["sqlite", "postgresql", "temporal"]


class Site(NamedTuple):
    url: str
    temporal: tuple[str, str] | None = None
    """Address and namespace."""

    @property
    def words(self) -> list[str]:
        """For the command line of a worker; `temporal_of` reads the last ones."""
        return [self.url, *(self.temporal or ())]


def temporal_of(words: Sequence[str]) -> TemporalConnection | None:
    """The Temporal that a worker was given, if any."""
    if not words:
        return None
    from paceline.dispatch.engines.temporal.client import TemporalConnection

    address, namespace = words
    return TemporalConnection(address, namespace)
