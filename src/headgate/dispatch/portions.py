"""How many items a transaction carries when very many are queued at once, and what marks a group of them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from headgate.dispatch.model import EnqueueRequest

BULK = 5000
"""Items a transaction, when very many are queued at once, …"""
BULK_CHARACTERS = 16_000_000
"""… and of context: databases refuse messages of a gigabyte."""


GROUPS = ("batch-", "chain-")
"""What the mark of a group begins with."""


def group_mark(kind: str, requests: Sequence[EnqueueRequest]) -> str:
    """What the first item of a batch or chain keeps, as its `init_workflow_id`, when its context is long deleted: the
    same calls have the same mark."""
    digest = hashlib.sha256()
    for request in requests:
        for text in (request.item_type, request.item_id, request.context_json):
            digest.update(f"{len(text)}:{text}".encode())
    return f"{kind}-{digest.hexdigest()[:32]}"


def is_group(init_workflow_id: str | None) -> bool:
    """Whether this is the mark of a group."""
    return init_workflow_id is not None and init_workflow_id.startswith(GROUPS)


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
