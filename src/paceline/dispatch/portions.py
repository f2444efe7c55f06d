"""How many items one transaction carries when very many are queued at once, and the marks of groups. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from paceline.dispatch.model import EnqueueRequest

BULK = 5000
"""Items per transaction when very many are queued at once, …"""
BULK_CHARACTERS = 16_000_000
"""… and characters of context: databases reject messages of a gigabyte."""


GROUPS = ("batch-", "chain-")
"""The prefixes of a group's mark."""


MEMBER = "member-"
"""The prefix of the mark of a batch's calls."""
HELD_UNTIL = datetime(2199, 1, 1, tzinfo=UTC)
"""The time of a batch's callback before the last call has ended."""


def group_mark(kind: str, requests: Sequence[EnqueueRequest]) -> str:
    """The `init_workflow_id` of the first item of a batch or chain, which outlives its context: the same calls have the
    same mark."""
    digest = hashlib.sha256()
    for request in requests:
        for text in (request.item_type, request.item_id, request.context_json):
            digest.update(f"{len(text)}:{text}".encode())
    return f"{kind}-{digest.hexdigest()[:32]}"


def is_group(init_workflow_id: str | None) -> bool:
    """Whether this is the mark of a group."""
    return init_workflow_id is not None and init_workflow_id.startswith(GROUPS)


def is_batch(init_workflow_id: str | None) -> bool:
    """Whether this is the mark of a batch's callback."""
    return init_workflow_id is not None and init_workflow_id.startswith("batch-")


def member_mark(item_type: str, item_id: str) -> str:
    """The `init_workflow_id` of a batch's calls: it names the callback."""
    return f"{MEMBER}{item_type}:{item_id}"


def callback_of(init_workflow_id: str | None) -> tuple[str, str] | None:
    """The type and the id of the callback of a batch's call; None if the item is none."""
    if init_workflow_id is None or not init_workflow_id.startswith(MEMBER):
        return None
    item_type, _, item_id = init_workflow_id.removeprefix(MEMBER).partition(":")
    return item_type, item_id


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
