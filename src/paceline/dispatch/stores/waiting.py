"""Calls that are one item while that waits: which item a call is, decided under locks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import EnqueueRequest, EnqueueResult, waiting_id
from paceline.dispatch.status import Status
from paceline.dispatch.stores import encrypting
from paceline.dispatch.stores.groups import Enqueue, Steps, run_steps
from paceline.dispatch.stores.tables import queue
from paceline.sql.prefix import begins_with

AFTER_NUMBERS = "g"
"""Behind every hexadecimal number, in any collation: the look is a short range of the index."""


def choose_steps(request: EnqueueRequest, chosen: list[EnqueueResult]) -> Steps:
    """Appends the item that the call is: one that waits, which is locked and so can't begin meanwhile, or a new one.
    The item of the bare key is locked first: calls of one key come one after the other."""
    item_type, key = request.item_type, request.item_id
    rows = sa.select(queue.c.item_id, queue.c.queue_status).where(queue.c.item_type == item_type)
    taken = yield rows.where(queue.c.item_id == key).with_for_update()
    # A look of its own: after the wait for that lock, it sees what the caller before has queued.
    later = begins_with(queue.c.item_id, f"{key}#") & (queue.c.item_id < f"{key}#{AFTER_NUMBERS}")
    ready = queue.c.queue_status == Status.READY.value
    waiting = yield rows.where(sa.or_(queue.c.item_id == key, later), ready).with_for_update()
    if waiting:
        chosen.append(EnqueueResult(item_type, waiting[0][0], True))
    else:
        chosen.append(EnqueueResult(item_type, waiting_id(key) if taken else key, False))


def enqueue(
    connection: Connection,
    write: Enqueue,
    encryption: Encryption | None,
    requests: Sequence[EnqueueRequest],
    now: datetime | None,
    hints: Sequence[str],
) -> list[EnqueueResult]:
    """Queues those that do not wait already, in the order of their keys."""
    results: dict[tuple[str, str], EnqueueResult] = {}
    for request in sorted(requests, key=lambda one: one[:2]):
        if request[:2] in results:
            continue
        chosen: list[EnqueueResult] = []
        run_steps(connection, choose_steps(request, chosen))
        result = chosen[0]
        if not result.existing:
            (new,) = encrypting.encrypted_requests(encryption, [request._replace(item_id=result.item_id)])
            if not write(connection, [new], now, hints):
                result = result._replace(existing=True)
        results[request[:2]] = result
    return in_order(requests, results)


def in_order(requests: Sequence[EnqueueRequest], results: dict[tuple[str, str], Any]) -> list[EnqueueResult]:
    """The result of each request; a second one for the same key finds the item of the first."""
    ordered: list[EnqueueResult] = []
    seen: set[tuple[str, str]] = set()
    for request in requests:
        result = results[request[:2]]
        ordered.append(result._replace(existing=True) if request[:2] in seen else result)
        seen.add(request[:2])
    return ordered
