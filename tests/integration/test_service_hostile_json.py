"""No JSON makes a route fail: what is nested too deeply, or is no number or text, is a 400 that names it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import orjson
import pytest
import pytest_asyncio
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.types import Message

from paceline.server.access.ports import AdminAudit, AuditEntry
from paceline.server.http.app import create_app
from paceline.server.http.body import MAX_LEVELS, MAX_OBJECT_VALUES, MAX_VALUES, parsed
from paceline.server.http.problem import Problem
from paceline.server.settings import Settings
from paceline.server.shapes.limits import MAX_OVERRIDES
from paceline.server.shapes.shape import Shape
from tests.effort import is_thorough

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
SCALARS = {"string", "integer", "number", "boolean", "null"}
STREAMED = ("/api/v1/slots/batch", "/api/v1/payments/bulk")
TOKEN = "hostile-json-token-0123456789"


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


HOSTILE = {
    "33 levels": nested(MAX_LEVELS + 1),
    "600 levels": nested(600),
    "600 objects": b'{"a":' * 600 + b"1" + b"}" * 600,
    "1,500 levels": nested(1500),
    "400 digits": b"1" + b"0" * 400,
    "300 digits": b"1" + b"0" * 300,
    "65 bits": b"18446744073709551616",
    "64 bits": b"-9223372036854775809",
    "1e400": b"1e400",
    "-1e308": b"-1e308",
    "1e-400": b"1e-400",
    "NaN": b"NaN",
    "half a pair": rb'"a\ud800b"',
    "half a pair as a name": rb'{"\udfff": 1}',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "NUL": rb'"\u0000"',
    "a name twice": rb'{"a": 1, "a": {"a": 2, "a": 3}}',
    "empty name": rb'{"": {"": [{}]}}',
}


NEVER_GOOD = ("33 levels", "600 levels", "600 objects", "1,500 levels", "400 digits", "1e400", "NaN", "half a pair")


class UnwrittenAudit:
    """An `AdminAudit` that accepts everything. In a database, its two transactions would take most of a call."""

    async def begin(self, caller: str, method: str, path: str, request_id: str, address: str | None = None) -> int:
        return 1

    async def end(self, number: int, status: int, detail: str | None = None) -> None: ...

    async def recent(self, limit: int, before: int | None = None) -> list[tuple[int, AuditEntry]]:
        return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FastAPI]:
    database_url = f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'paceline.db'}"
    # Any number of bad logins.
    created = create_app(Settings(database_url=database_url, ingress={"failures_per_minute": 0}))
    async with created.router.lifespan_context(created):
        yield created


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline")


def bodies(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and schema of every route that reads JSON."""
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                filled = path.replace("{itemType}", "PAYMENT").replace("{name}", "gold")
                filled = filled.replace("{phone}", "+491701234567")
                assert "{" not in filled, "a new parameter"
                yield method.upper(), filled, content["application/json"]["schema"]


def documents(schema: dict[str, Any], hostile: bytes) -> Iterator[bytes]:
    """The value itself as a body; then documents that are good but for one member, which is the value or holds it. A
    number or a text that is an object instead, which holds the value, is left to the thorough check."""
    yield hostile
    for shape in schema.get("oneOf", [schema]):
        properties = shape.get("properties") or schema.get("properties", {})
        needed = {*schema.get("required", ()), *shape.get("required", ())}
        good = {name: orjson.dumps(example(properties[name])) for name in needed}
        for name in [*properties, "unknown"]:
            holder = b'{"x": [' + hostile + b"]}"
            may_hold = is_thorough() or not types(properties.get(name, {})) <= SCALARS
            for value in (hostile, holder) if may_hold else (hostile,):
                members = good | {name: value}
                yield b"{" + b",".join(b'"%s":%s' % (key.encode(), member) for key, member in members.items()) + b"}"


def types(schema: dict[str, Any]) -> set[str]:
    """The types that a value may have."""
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return set().union(*map(types, choices))
    named = schema.get("type", "anything")
    return {named} if isinstance(named, str) else {*named}


async def called(app: FastAPI, method: str, path: str, body: bytes, **scope: Any) -> tuple[int, bytes]:
    """Status and body of the answer. Without a client in between: there are thousands of calls."""
    status, parts = 0, []
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""} | scope
    await app({"client": ("127.0.0.1", 1), "scheme": "http", "root_path": ""} | scope, receive, send)
    return status, b"".join(parts)


def example(schema: dict[str, Any]) -> Any:
    if "example" in schema:
        return schema["example"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: example(member) for name, member in schema["properties"].items()}
    if kind == "array":
        return [example(schema["items"])]
    return "PT4S" if kind == "string" else 5


@pytest.fixture
def unwritten_audit(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> AdminAudit:
    audit: AdminAudit = UnwrittenAudit()
    monkeypatch.setattr(app.state.services, "audit", audit)
    return audit


@pytest.mark.usefixtures("unwritten_audit")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_no_route_fails_on_hostile_json(app: FastAPI, kind: str) -> None:
    tried = set()
    for method, path, schema in bodies(app):
        for document in documents(schema, HOSTILE[kind]):
            status, answer = await called(app, method, path, document)
            assert status != 500, (path, document[:200], answer)
            assert status == 400 or kind not in NEVER_GOOD, (path, document[:200], answer)
        tried.add((method, path))
    assert len(tried) >= 13


@pytest.mark.parametrize("kind", HOSTILE)
async def test_the_audit_records_hostile_json(app: FastAPI, kind: str) -> None:
    body = b'{"configName": "x", "maxPerWindow": 5, "windowSize": "PT4S", "unknown": %s}' % HOSTILE[kind]
    status, answer = await called(app, "POST", "/admin/rate-limit/config", body)
    assert status == 400, answer
    ((_, recorded),) = await app.state.services.audit.recent(1)
    assert (recorded.status, recorded.path) == (400, "/admin/rate-limit/config")
    assert recorded.detail.startswith('{"configName": "x"')


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("path", STREAMED)
async def test_a_hostile_line_of_a_stream_is_refused_alone(app: FastAPI, path: str, kind: str) -> None:
    schema = next(each for _, other, each in bodies(app) if other == path.replace("/batch", "").replace("/bulk", ""))
    async with client(app) as http:
        lines = list(documents(schema, HOSTILE[kind]))
        answer = await http.post(path, content=b"\n".join(lines), headers=NDJSON)
        assert answer.status_code == 200, answer.text
        if path.endswith("batch"):
            assert len(answer.text.splitlines()) == len(lines)


@pytest.mark.parametrize(
    ("member", "field"),
    [
        ({"windowSizeSecs": b"1" + b"0" * 400}, "windowSizeSecs"),
        ({"calendar": nested(600)}, "calendar"),
        ({"calendar": b'{"zone": ' + nested(600) + b"}"}, "calendar"),
        ({"calendar": rb'{"open": [1, {"from": "\ud800"}]}'}, "calendar.open[1].from"),
    ],
)
async def test_the_member_is_named(app: FastAPI, member: dict[str, bytes], field: str) -> None:
    ((name, value),) = member.items()
    async with client(app) as http:
        content = b'{"configName": "x", "maxPerWindow": 5, "%s": %s}' % (name.encode(), value)
        answer = await http.post("/admin/rate-limit/config", content=content, headers=JSON)
        assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text


async def test_what_is_nested_within_bounds_is_read() -> None:
    assert parsed(nested(MAX_LEVELS)) is not None
    with pytest.raises(Problem, match=f"more than {MAX_LEVELS} levels"):
        parsed(nested(MAX_LEVELS + 1))
    # Brackets inside a text are no levels.
    assert parsed(orjson.dumps({"a": "[" * 1000})) == {"a": "[" * 1000}


async def test_a_large_body_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow parser, which finds out which member is wrong, sees small bodies only."""
    monkeypatch.setattr("paceline.server.http.body.json.loads", lambda *_, **__: pytest.fail("parsed again"))
    with pytest.raises(Problem, match="is not valid JSON: no low surrogate"):
        parsed(rb'["\ud800", "' + b"x" * 100_000 + b'"]')


async def test_no_body_is_read_before_the_token_is_asked_for(tmp_path: Path) -> None:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'guarded.db'}", api_token=TOKEN))

    async def receive() -> dict[str, Any]:
        pytest.fail("the body was read")

    async with app.router.lifespan_context(app):
        for method, path, _ in bodies(app):
            if path == "/console/session":
                continue
            answers: list[Any] = []

            async def send(message: Any, answers: list[Any] = answers) -> None:
                answers.append(message)

            headers = [(b"content-type", b"application/json"), (b"host", b"paceline")]
            scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
            await app(scope | {"client": ("127.0.0.1", 1), "scheme": "http", "root_path": ""}, receive, send)
            assert answers[0]["status"] == 401, (method, path)


# -- large JSON: the work is bounded before it is done -----------------------------------------------------------------

LISTS = {
    "/api/v1/slots/batch",
    "/api/v1/limits/acquire/batch",
    "/api/v1/remote/look",
    "/api/v1/remote/submit",
    "/admin/remote",
    "/api/send/batch",
    "/admin/dispatch/PAYMENT/requeue",
    "/admin/dispatch/PAYMENT/discard",
    "/admin/dispatch/PAYMENT/resolve",
    "/admin/dispatch/PAYMENT/cancel",
    "/admin/dispatch/PAYMENT/reschedule",
    "/admin/sms/dead-letters/redrive",
    "/admin/sms/dead-letters/drop",
    "/admin/plans/gold",
    "/admin/periodic/gold",
}
"""The routes whose bodies hold a list of any kind, overrides or a context, and so may be large."""


def unknown_members(count: int) -> bytes:
    return b"{%s}" % b",".join(b'"%x":1' % number for number in range(count))


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all JSON documents that were parsed."""
    sizes: list[int] = []

    def loads(raw: bytes) -> Any:
        sizes.append(len(raw))
        return orjson.loads(raw)

    counting = SimpleNamespace(loads=loads, JSONDecodeError=orjson.JSONDecodeError)
    monkeypatch.setattr("paceline.server.http.body.orjson", counting)
    monkeypatch.setattr("paceline.server.http.limit_batches.orjson", counting)
    return sizes


@pytest.mark.usefixtures("unwritten_audit")
async def test_an_object_with_very_many_members_is_never_parsed(app: FastAPI, parses: list[int]) -> None:
    few, many = unknown_members(MAX_OBJECT_VALUES + 1), unknown_members(MAX_VALUES + 1)
    for method, path, _ in bodies(app):
        status, answer = await called(app, method, path, many if path in LISTS else few)
        assert status == (413 if path == "/console/session" else 400), (path, answer)
        assert parses == [], path


@pytest.mark.usefixtures("unwritten_audit")
async def test_only_lists_may_have_many_values(app: FastAPI, parses: list[int]) -> None:
    for method, path, _ in bodies(app):
        status, answer = await called(app, method, path, b"[" + b"1," * MAX_OBJECT_VALUES + b"1]")
        assert status == (413 if path == "/console/session" else 400), (path, answer)
        assert bool(parses) == (path in LISTS)
        parses.clear()


async def test_one_of_many_unknown_members_is_reported_without_the_others(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydantic makes an error per unknown member, with a thousand bytes each."""
    counts: list[int] = []
    explain = Shape._explain.__func__  # type: ignore[attr-defined]

    def count(cls: type[Shape], error: ValidationError, *rest: Any) -> Exception:
        counts.append(error.error_count())
        made: Exception = explain(cls, error, *rest)
        return made

    monkeypatch.setattr(Shape, "_explain", classmethod(count))
    many = unknown_members(1000)
    nested_members = {
        "/api/v1/slots/batch": b'{"events":[%s]}',
        "/api/v1/limits/acquire/batch": b'{"requests":[%s]}',
        "/api/send/batch": b'{"messages":[%s]}',
        "/admin/dispatch/PAYMENT/cancel": b'{"filter":%s}',
    }
    for method, path, _ in bodies(app):
        if path == "/console/session":
            continue  # takes 4 KiB
        for document in (many, nested_members.get(path, b"%s") % many):
            status, answer = await called(app, method, path, document)
            assert status == 400, (path, answer)
            if not path.startswith("/admin/plans"):
                assert orjson.loads(answer)["field"].rpartition(".")[2] == "0", answer
    assert max(counts, default=0) < 20


async def test_a_large_batch_of_many_values_is_accepted(app: FastAPI) -> None:
    events = [{"eventId": f"large-{number}", "requestedTime": "2027-01-01T00:00:00Z"} for number in range(3)]
    body = orjson.dumps({"events": events}) + b" " * MAX_VALUES
    status, answer = await called(app, "POST", "/api/v1/slots/batch", body)
    assert status == 200, answer


async def test_a_plan_has_a_bounded_number_of_overrides(app: FastAPI) -> None:
    def plan(overrides: int) -> bytes:
        keys = {f"user:{number}": "1/second" for number in range(overrides)}
        return orjson.dumps({"rate": "1/second", "overrides": keys})

    status, answer = await called(app, "PUT", "/admin/plans/gold", plan(MAX_OVERRIDES + 1))
    problem = orjson.loads(answer)
    assert (status, problem["field"]) == (400, "overrides")
    assert f"at most {MAX_OVERRIDES}" in problem["detail"]
    assert "several plans" in problem["detail"]
    status, answer = await called(app, "PUT", "/admin/plans/gold", plan(20))
    assert status == 200, answer
