"""Attempt events in an index of OpenSearch, or of anything that takes its bulk requests, for dashboards over them.

The reader of the events copies each to a topic of its own, and a second reader brings them from there into the index.
So a slow or unavailable index delays nothing else: its events wait in the log, at most `LONGEST_WAIT_MS`. Indexing is
idempotent: an event's id is its document id.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx2

from paceline.clock import Clock, SystemClock
from paceline.durations import from_ms
from paceline.errors import InvalidInput, StoreUnavailable
from paceline.messaging import LogEntry, MessageSource, process_until_stopped
from paceline_sms.model import AttemptEvent
from paceline_sms.ports import NotificationObserver

INDEX_GROUP = "notification-index"
BATCH = 500
JSON = {"content-type": "application/json"}
MAPPINGS = {"properties": {"@timestamp": {"type": "date"}, "userId": {"type": "long"}, "status": {"type": "keyword"}}}
"""Guessed from the first document, `status` would be a text, which dashboards can't group by."""
LONGEST_WAIT_MS = 24 * 3_600_000

_log = logging.getLogger(__name__)


class SearchIndex:
    """One index, behind its bulk interface. Before the first event it is told the types of their members, by an index
    template; one of that name that is there stays.

    SearchIndex("https://search.example:9200", "notification-events", {"authorization": "Basic …"})
    """

    def __init__(self, url: str, index: str, headers: Mapping[str, str], *, timeout: float = 10.0) -> None:
        self._url = f"{url.rstrip('/')}/_bulk"
        self._template_url = f"{url.rstrip('/')}/_index_template/paceline-{index}"
        self._has_template = False
        self._index = index
        self._client = httpx2.AsyncClient(
            timeout=timeout, headers={**headers, "content-type": "application/x-ndjson"}, follow_redirects=False
        )

    async def add(self, events: Sequence[AttemptEvent]) -> int:
        """Indexes the events; returns how many the index refuses for good, which is logged.

        Raises:
            StoreUnavailable: It did not answer, or did not accept all of them; retry.
        """
        if not self._has_template:
            await self._put_template()
        response = await self._request("POST", self._url, content=bulk_body(self._index, events))
        if response.status_code != 200:
            raise StoreUnavailable(f"the search index answered {response.status_code}")
        try:
            busy, refused = outcomes(response.json())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreUnavailable("the search index did not answer a bulk request as OpenSearch does") from error
        if busy:
            raise StoreUnavailable(f"the search index has no room for {busy} of {len(events)} events")
        if refused:
            _log.error("the search index refuses %d events: %s", len(refused), refused[0])
        return len(refused)

    async def _put_template(self) -> None:
        response = await self._request("HEAD", self._template_url)
        if response.status_code != 200:
            template = {"index_patterns": [self._index], "priority": 100, "template": {"mappings": MAPPINGS}}
            response = await self._request("PUT", self._template_url, json=template, headers=JSON)
        if response.status_code == 429 or response.status_code >= 500:
            raise StoreUnavailable(f"the search index answered {response.status_code}")
        if response.status_code >= 400:
            _log.warning("the search index takes no template (%d): it guesses the types", response.status_code)
        self._has_template = True

    async def _request(self, method: str, url: str, **content: Any) -> httpx2.Response:
        try:
            return await self._client.request(method, url, **content)
        except httpx2.HTTPError as error:
            raise StoreUnavailable(f"the search index did not answer: {type(error).__name__}") from error

    async def close(self) -> None:
        await self._client.aclose()


def bulk_body(index: str, events: Sequence[AttemptEvent]) -> str:
    """The body of a bulk request: an action line and the document, per event."""
    lines = []
    for event in events:
        document = {"@timestamp": from_ms(event.at_ms).isoformat(), "userId": event.user_id, "status": event.outcome}
        lines += [json.dumps({"index": {"_index": index, "_id": event.event_id}}), json.dumps(document)]
    return "\n".join([*lines, ""])


def outcomes(answer: Mapping[str, Any]) -> tuple[int, list[str]]:
    """From a bulk response: how many events to retry, and the errors of those that can never be indexed."""
    if not answer["errors"]:
        return 0, []
    results = [item["index"] for item in answer["items"]]
    busy = [result for result in results if _is_temporary(result)]
    refused = [result for result in results if result["status"] >= 400 and not _is_temporary(result)]
    return len(busy), [str(result.get("error", result["status"])) for result in refused]


def _is_temporary(result: Mapping[str, Any]) -> bool:
    """Whether a retry may help. 403 is a block of the index: its disk is full, or it is read-only for a while."""
    status: int = result["status"]
    return status in (403, 429) or status >= 500


class IndexReader:
    """Brings attempt events from their topic into the index."""

    def __init__(
        self,
        join: Callable[[], Awaitable[MessageSource]],
        index: SearchIndex,
        observer: NotificationObserver,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._join = join
        self._index = index
        self._observer = observer
        self._clock = clock or SystemClock()

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set, then leaves. Retries while the index does not answer."""
        try:
            await process_until_stopped(self._join, self._index_events, stop, batch=BATCH)
        finally:
            await self._index.close()

    async def _index_events(self, entries: Sequence[LogEntry]) -> None:
        oldest_ms = self._clock.now_us() // 1000 - LONGEST_WAIT_MS
        events, expired = [], 0
        for message in entries:
            try:
                event = AttemptEvent.from_record_value(message.record.value)
            except InvalidInput:
                _log.warning("a record of %s is not an attempt event and is skipped", message.record.topic)
                continue
            if event.at_ms >= oldest_ms:
                events.append(event)
            else:
                expired += 1
        try:
            refused = await self._index.add(events) if events else 0
        except StoreUnavailable:
            self._observer.events_retried(len(events))
            raise
        self._observer.events_indexed(len(events) - refused, refused, expired)
