"""Encryption of contexts and results at rest, in the queue's store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.dispatch.encryption import PREFIX, Encryption, InvalidCiphertext, KeyMissing
from paceline.dispatch.model import CONTEXT_VERSION, ENCRYPTED_VERSION, Change, ClaimedItem, EnqueueRequest


def context_version(context_json: str) -> int:
    """The form in which a context is stored. A version of paceline that can't read it releases the item."""
    return ENCRYPTED_VERSION if context_json.startswith(PREFIX) else CONTEXT_VERSION


def encrypted_requests(encryption: Encryption | None, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueRequest]:
    if encryption is None:
        return requests
    return [
        request._replace(
            context_json=encryption.encrypt(request.context_json, _about("context", request.item_type, request.item_id))
        )
        for request in requests
    ]


def encrypting(enqueue: Callable[..., Any], encryption: Encryption | None) -> Callable[..., Any]:
    """`enqueue`, for requests whose contexts are not encrypted yet."""
    if encryption is None:
        return enqueue

    def encrypted(connection: Any, requests: Sequence[EnqueueRequest], *rest: Any) -> Any:
        return enqueue(connection, encrypted_requests(encryption, requests), *rest)

    return encrypted


def encrypted_changes(encryption: Encryption | None, changes: Sequence[Change]) -> Sequence[Change]:
    if encryption is None:
        return changes
    return [
        change
        if change.result_json is None
        else change._replace(
            result_json=encryption.encrypt(
                change.result_json, _about("result", change.claim.item_type, change.claim.item_id)
            )
        )
        for change in changes
    ]


def decrypted_item(encryption: Encryption | None, item: ClaimedItem) -> ClaimedItem:
    """The claimed item with its context. If its key is missing here, it is unchanged, and the item is released; if it
    was tampered with, it is no JSON, and the item is dead-lettered."""
    if item.context_version != ENCRYPTED_VERSION or item.context_json is None or encryption is None:
        return item
    about = _about("context", item.claim.item_type, item.claim.item_id)
    try:
        text = encryption.decrypt(item.context_json, about)
    except KeyMissing:
        return item
    except InvalidCiphertext:
        text = item.context_json
    return item._replace(context_json=text, context_version=CONTEXT_VERSION)


def shown(encryption: Encryption | None, kind: str, item_type: str, item_id: str, text: str | None) -> str | None:
    """A stored context or result, decrypted as far as the keys go."""
    if encryption is None or text is None:
        return text
    try:
        return encryption.decrypt(text, _about(kind, item_type, item_id))
    except (KeyMissing, InvalidCiphertext):
        return text


def _about(kind: str, item_type: str, item_id: str) -> str:
    return f"{kind}/{item_type}/{item_id}"
