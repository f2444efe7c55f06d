"""The results of a search, on the wire."""

from __future__ import annotations

from pydantic import Field

from paceline.server.shapes.shape import Instant, Shape


class Found(Shape):
    """A match: its id is, or begins with, the searched text; of a config or a queue, holds it."""

    kind: str = Field(
        description="`event`, `config`, `queue`, `item` or `key`, or of an application, such as `invoice`."
    )
    id: str
    item_type: str | None = Field(None, description="Of an item.")
    status: str | None = None
    at: Instant | None = Field(None, description="When it runs, or when it came.")
    plans: list[str] | None = Field(None, description="Of a key: the plans under which it has spent something.")
    exact: bool
    href: str = Field(description="Where the API shows it; of a key, where it is peeked at.")


class SearchResults(Shape):
    """The matches, exact ids first."""

    query: str
    results: list[Found]
    searched: list[str]
    """The kinds that were searched; items, queues and configs need the scope `view`."""
    unavailable: list[str]
    """The kinds whose store did not answer."""
