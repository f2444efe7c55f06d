"""How many items a transaction carries when very many are queued at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.dispatch.model import EnqueueRequest

BULK = 5000
"""Items a transaction, when very many are queued at once, …"""
BULK_CHARACTERS = 16_000_000
"""… and of context: databases refuse messages of a gigabyte."""


def portions(requests: Sequence[EnqueueRequest]) -> Iterator[Sequence[EnqueueRequest]]:
    """The requests in order, as many at once as a transaction should carry."""
    first = characters = 0
    for position, request in enumerate(requests):
        size = len(request.context_json)
        if position - first == BULK or (characters + size > BULK_CHARACTERS and position > first):
            yield requests[first:position]
            first, characters = position, 0
        characters += size
    if first < len(requests):
        yield requests[first:]
