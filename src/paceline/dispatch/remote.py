"""The queue of a paceline service: `DispatchQueue.open("https://paceline.internal", token="…")`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Unpack, cast

from paceline.dispatch.changes import Preview
from paceline.dispatch.config import DispatchConfig, OnUnknown
from paceline.dispatch.model import (
    Attempt,
    AttemptOutcome,
    AuditEntry,
    EnqueueRequest,
    EnqueueResult,
    Item,
    ItemDetail,
    Progress,
    PruneResult,
    QueueStats,
)
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue, QueueOptions
from paceline.dispatch.search import ErrorGroup, LaneDepth
from paceline.dispatch.status import Status
from paceline.dispatch.worker.heartbeats import Worker, WorkerInfo
from paceline.errors import InvalidInput
from paceline.remote import NOT_OFFERED, Form, Method, Need, RemoteApi, RemoteCalls
from paceline.slots.model import checked_id

_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def _request(given: dict[str, Any]) -> EnqueueRequest:
    """Checked as if its fields were given to `EnqueueRequest.of`."""
    trace, slot_id = given.pop("traceparent"), given.pop("slot_id")
    try:
        context = json.loads(given.pop("context_json"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("context", f"is not JSON: {error}") from None
    request = EnqueueRequest.of(context=context, **given)
    if trace is not None and not _TRACE.fullmatch(trace):
        raise InvalidInput("traceparent", "is no W3C trace context")
    if slot_id is not None:
        checked_id(slot_id, "slot_id")
    return request._replace(traceparent=trace, slot_id=slot_id)


def item_types_of(arguments: Mapping[str, Any]) -> set[str]:
    """The item types that a call is about."""
    requests = [*arguments.get("requests", ()), *arguments.get("members", ())]
    about = [*requests, *(arguments[name] for name in ("head", "config") if name in arguments)]
    return {one.item_type for one in about} | {arguments[name] for name in ("item_type",) if name in arguments}


API = RemoteApi(
    "queue",
    DispatchQueue,
    {
        "config": Method(Need.LOOK),
        "configs": Method(Need.LOOK),
        "stats": Method(Need.LOOK),
        "workers": Method(Need.LOOK),
        "list": Method(Need.LOOK),
        "count": Method(Need.LOOK),
        "unserved": Method(Need.LOOK),
        "error_groups": Method(Need.LOOK),
        "lanes": Method(Need.LOOK),
        "progress_of": Method(Need.LOOK),
        "find": Method(Need.LOOK),
        "show": Method(Need.LOOK),
        "audit": Method(Need.LOOK),
        "preview": Method(Need.LOOK),
        "define": Method(Need.SUBMIT),
        "enqueue_requests": Method(Need.SUBMIT),
        "enqueue_group": Method(Need.SUBMIT),
        "configure": Method(Need.ADMIN, is_repeatable=False),
        "declare": Method(Need.ADMIN),
        "pause": Method(Need.ADMIN),
        "resume": Method(Need.ADMIN),
        "requeue": Method(Need.ADMIN, is_repeatable=False),
        "discard": Method(Need.ADMIN, is_repeatable=False),
        "cancel": Method(Need.ADMIN, is_repeatable=False),
        "reschedule": Method(Need.ADMIN, is_repeatable=False),
        "resolve": Method(Need.ADMIN, is_repeatable=False),
        "prune": Method(Need.ADMIN),
    },
    [
        Attempt,
        AttemptOutcome,
        AuditEntry,
        EnqueueResult,
        ErrorGroup,
        Item,
        ItemDetail,
        LaneDepth,
        OnUnknown,
        Preview,
        Progress,
        PruneResult,
        QueueStats,
        Status,
        Worker,
        WorkerInfo,
    ],
    {
        DispatchConfig: Form(
            lambda config: {member.name: getattr(config, member.name) for member in fields(config)},
            lambda given: DispatchConfig(**given),
        ),
        EnqueueRequest: Form(EnqueueRequest._asdict, _request),
    },
)


class _Store:
    """What of a store `DispatchQueue` needs for queueing: a service's."""

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls

    async def enqueue(self, requests: Sequence[EnqueueRequest], *, within: Any = None) -> Sequence[EnqueueResult]:
        if within is not None:
            raise InvalidInput("connection", NOT_OFFERED["connection"])
        # An item by its key is another one when it is queued again.
        again = not any(request.while_waiting for request in requests)
        queued: list[EnqueueResult] = await self._calls.call("enqueue_requests", requests, again=again)
        return queued

    async def close(self) -> None:
        await self._calls.close()


@API.offer
class RemoteDispatchQueue(DispatchQueue):
    """A `DispatchQueue` whose database is behind a service. Arguments are checked here, and there again."""

    def __init__(self, url: str, token: str | None = None, **options: Unpack[QueueOptions]) -> None:
        self._calls = RemoteCalls(API, url, token)
        super().__init__(cast(QueueStore, _Store(self._calls)), **options)

    enqueue_requests = DispatchQueue.enqueue_requests

    async def check_known(self, item_type: str) -> None:
        """The service does, which may let nobody look who queues."""
