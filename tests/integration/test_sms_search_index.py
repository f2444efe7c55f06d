"""Attempt events in a search index, against a local server that answers bulk requests as OpenSearch does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.durations import to_ms
from paceline.errors import StoreUnavailable
from paceline.messaging import Record
from paceline.server.settings import Settings
from paceline.testing import FakeClock, eventually
from paceline_sms.model import AttemptEvent, Outcome
from paceline_sms.ports import NullObserver
from paceline_sms.service.wiring.notifications import open_notifications
from paceline_sms.settings import SmsSettings
from paceline_sms.stores.opensearch import LONGEST_WAIT_MS, IndexReader, SearchIndex
from tests.unit.apps.sms.fakes import MemorySource


@dataclass
class OpenSearch:
    """An index in memory. `away` answers 503; `refused` and `busy` are ids it does not take, the latter once."""

    url: str = ""
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)
    away: bool = False
    requests: int = 0
    blocked: int = 0
    """How many documents are still refused because the index is read-only."""
    refused: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    templates: dict[str, Any] = field(default_factory=dict)
    forbids_templates: bool = False

    def put(self, path: str, body: bytes) -> int:
        """The status of an answer to a template."""
        assert path.startswith("/_index_template/")
        self.requests += 1
        if self.away or self.forbids_templates:
            return 503 if self.away else 403
        self.templates[path.rpartition("/")[2]] = json.loads(body)
        return 200

    def bulk(self, body: bytes) -> dict[str, Any]:
        assert body.endswith(b"\n"), "a bulk request ends with a line feed"
        lines = [json.loads(line) for line in body.splitlines()]
        items = [
            self._index(action["index"], document) for action, document in zip(lines[::2], lines[1::2], strict=True)
        ]
        return {"took": 1, "errors": any("error" in item["index"] for item in items), "items": items}

    def _index(self, where: dict[str, str], document: dict[str, Any]) -> dict[str, Any]:
        identity = where["_id"]
        if identity in self.busy:
            self.busy.remove(identity)
            return {"index": {**where, "status": 429, "error": {"type": "rejected_execution_exception"}}}
        if self.blocked:
            self.blocked -= 1
            error = {"type": "cluster_block_exception", "reason": "index blocked: read-only / allow delete (api)"}
            return {"index": {**where, "status": 403, "error": error}}
        if identity in self.refused:
            return {"index": {**where, "status": 400, "error": {"type": "mapper_parsing_exception"}}}
        status = 200 if identity in self.documents else 201
        self.documents[identity] = {"_index": where["_index"], **document}
        return {"index": {**where, "status": status}}


@pytest.fixture
def opensearch() -> Iterator[OpenSearch]:
    known = OpenSearch()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.path == "/_bulk"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known.requests += 1
            known.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, answer = (503, {}) if known.away else (200, known.bulk(body))
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_HEAD(self) -> None:
            self.answer(200 if self.path.rpartition("/")[2] in known.templates else 404)

        def do_PUT(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            self.answer(known.put(self.path, self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield known
    http.shutdown()
    thread.join()
    http.server_close()


class Counted(NullObserver):
    def __init__(self) -> None:
        self.results = (0, 0, 0)

    def events_indexed(self, indexed: int, refused: int, expired: int) -> None:
        before = self.results
        self.results = (before[0] + indexed, before[1] + refused, before[2] + expired)


NOW = datetime(2030, 3, 1, 16, tzinfo=UTC)


def event(identity: str, at_ms: int | None = None) -> AttemptEvent:
    return AttemptEvent(identity, 7, Outcome.SENT, to_ms(NOW) if at_ms is None else at_ms)


async def test_an_event_is_a_document_under_its_own_id(opensearch: OpenSearch) -> None:
    index = SearchIndex(opensearch.url + "/", "sms", {"authorization": "Basic eDp5"})
    assert await index.add([event("a"), event("b")]) == 0
    assert await index.add([event("a")]) == 0
    await index.close()
    assert opensearch.documents["a"] == {
        "_index": "sms",
        "@timestamp": "2030-03-01T16:00:00+00:00",
        "userId": 7,
        "status": "SENT",
    }
    assert sorted(opensearch.documents) == ["a", "b"]
    assert opensearch.headers[0]["authorization"] == "Basic eDp5"
    assert opensearch.headers[0]["content-type"] == "application/x-ndjson"


async def test_busy_is_tried_again_and_refused_is_not(opensearch: OpenSearch) -> None:
    opensearch.busy, opensearch.refused = {"a"}, {"b"}
    index = SearchIndex(opensearch.url, "sms", {})
    with pytest.raises(StoreUnavailable, match="no room for 1 of 3"):
        await index.add([event("a"), event("b"), event("c")])
    assert await index.add([event("a"), event("b"), event("c")]) == 1
    await index.close()
    assert sorted(opensearch.documents) == ["a", "c"]


async def test_what_is_not_opensearch_is_unavailable() -> None:
    index = SearchIndex("http://127.0.0.1:9", "sms", {})
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await index.add([event("a")])
    await index.close()


async def test_events_that_waited_a_day_expire_and_junk_is_skipped(opensearch: OpenSearch) -> None:
    clock, counted = FakeClock(NOW), Counted()
    old = event("old", to_ms(NOW) - LONGEST_WAIT_MS - 1)
    values = [old.to_record_value(), "junk", event("new").to_record_value()]
    source, stop = MemorySource([Record("t", "7", value) for value in values]), asyncio.Event()

    async def join() -> MemorySource:
        return source

    reader = IndexReader(join, SearchIndex(opensearch.url, "sms", {}), counted, clock=clock)
    reading = asyncio.create_task(reader.run(stop))
    await asyncio.wait_for(source.drained.wait(), 20)
    stop.set()
    await reading
    assert sorted(opensearch.documents) == ["new"]
    assert counted.results == (1, 0, 1)


async def test_an_index_that_is_away_holds_up_neither_sends_nor_counts(tmp_path: Path, opensearch: OpenSearch) -> None:
    """Its events wait, and reach it when it is back."""
    opensearch.away = True
    settings = Settings.load(
        database_url=f"sqlite:///{tmp_path / 'sms.db'}", sms=SmsSettings(opensearch_url=opensearch.url)
    )
    async with open_notifications(settings) as gateway:
        await gateway.intake.configure(7, 3, 60)
        verdicts = [await gateway.intake.send(7, "hello") for _ in range(5)]
        assert [verdict.allowed for verdict in verdicts] == [True, True, True, False, False]

        async def all_counted() -> bool:
            now_ms = await gateway.analytics.now_ms()
            totals, _ = await gateway.analytics.totals(now_ms - 600_000, now_ms + 60_000)
            return sum(count.attempts for count in totals) == 5

        await eventually(all_counted)
        await eventually(lambda: opensearch.requests)
        assert opensearch.documents == {}
        opensearch.away = False
        await eventually(lambda: len(opensearch.documents) == 5)
    statuses = sorted(document["status"] for document in opensearch.documents.values())
    assert statuses == ["RATE_LIMITED", "RATE_LIMITED", "SENT", "SENT", "SENT"]


class Retries(NullObserver):
    def __init__(self) -> None:
        self.retried = 0

    def events_retried(self, count: int) -> None:
        self.retried += count


async def test_events_wait_while_the_index_is_blocked(opensearch: OpenSearch) -> None:
    """A disk beyond the flood stage makes an index read-only: 403 for each document, until there is room again."""
    opensearch.blocked = 3
    event = AttemptEvent("e1", 7, Outcome.SENT, to_ms(datetime.now(UTC)))
    source, observer, stop = MemorySource([Record("t", "7", event.to_record_value())]), Retries(), asyncio.Event()

    async def join() -> MemorySource:
        return source

    index = SearchIndex(opensearch.url, "events", {})
    reading = asyncio.create_task(IndexReader(join, index, observer).run(stop))
    await asyncio.wait_for(source.drained.wait(), 30)
    stop.set()
    await asyncio.wait_for(reading, 30)
    assert set(opensearch.documents) == {"e1"}
    assert observer.retried == 3


async def test_the_index_knows_its_types_before_the_first_event(opensearch: OpenSearch) -> None:
    index = SearchIndex(opensearch.url, "events", {})
    opensearch.away = True
    with pytest.raises(StoreUnavailable, match="503"):
        await index.add([AttemptEvent("e1", 7, Outcome.SENT, 0)])
    assert (opensearch.templates, opensearch.documents) == ({}, {})
    opensearch.away = False
    assert await index.add([AttemptEvent("e1", 7, Outcome.SENT, 0)]) == 0
    (template,) = opensearch.templates.values()
    types = {name: kind["type"] for name, kind in template["template"]["mappings"]["properties"].items()}
    assert (template["index_patterns"], types) == (
        ["events"],
        {"@timestamp": "date", "userId": "long", "status": "keyword"},
    )
    assert types.keys() == opensearch.documents["e1"].keys() - {"_index"}
    await index.close()


async def test_a_template_that_is_there_stays_and_one_that_is_forbidden_is_no_obstacle(
    opensearch: OpenSearch, caplog: pytest.LogCaptureFixture
) -> None:
    opensearch.templates = {"paceline-events": {"own": True}}
    opensearch.forbids_templates = True
    for name in ("events", "others"):
        index = SearchIndex(opensearch.url, name, {})
        for number in range(2):
            assert await index.add([AttemptEvent(f"{name}-{number}", 7, Outcome.SENT, 0)]) == 0
        await index.close()
    assert (opensearch.templates, len(opensearch.documents)) == ({"paceline-events": {"own": True}}, 4)
    assert caplog.text.count("takes no template (403)") == 1
