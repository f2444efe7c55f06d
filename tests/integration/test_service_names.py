"""A token that is bound to names shows and changes what has such names, and nothing else, on every route there is."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
from fastapi import FastAPI

from paceline import Downstream, SlotRequest, WindowPolicy
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.remote import API as QUEUE
from paceline.dispatch.worker.heartbeats import WorkerInfo
from paceline.remote import Need, RemoteApi
from paceline.server.access.authenticator import create_token
from paceline.server.http.app import create_app
from paceline.server.http.parameters import CALLBACKS
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from paceline.slots.listing import SlotFilter
from paceline.slots.model import BookingGroup
from paceline.slots.remote import API as SLOTS
from paceline.slots.scheduler import SlotScheduler

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN = "admin-token-of-the-names"
AT = "2031-03-01T16:00:00Z"
SECRET = re.compile("team.b.hidden", re.IGNORECASE)
"""What of the other team stands in no request: no answer may have it."""
OTHER = re.compile("team.b", re.IGNORECASE)


class Site(NamedTuple):
    app: FastAPI
    http: httpx.AsyncClient
    database_url: str
    team: Mapping[str, str]
    """The header fields of team A."""
    slow: Mapping[str, str]
    """Those of a token that may be used twice a minute."""

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, path, headers=self.team, **options)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('names') / 'names.db'}"
    settings = Settings(database_url=url, admin_token=ADMIN)
    async with open_access_store(settings) as store:
        secret, _ = await create_token(
            store, "team-a", ["admin"], datetime.now(UTC) + timedelta(hours=1), patterns=["team-a-*"]
        )
        slow, _ = await create_token(store, "slow", ["read"], rate="2/minute")
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as http,
    ):
        app.state.services.streams.ended.set()  # a stream ends at once
        for team in ("team-a", "team-b"):
            for thing in ("thing", "hidden"):
                await make(http, url, f"{team}-{thing}")
        yield Site(app, http, url, {"Authorization": f"Bearer {secret}"}, {"Authorization": f"Bearer {slow}"})


async def make(http: httpx.AsyncClient, url: str, name: str) -> None:
    """Something of every kind, with this name."""

    async def send(method: str, path: str, body: dict[str, Any]) -> None:
        answer = await http.request(method, path, json=body, headers={"Authorization": f"Bearer {ADMIN}"})
        assert answer.status_code < 300, (path, answer.text)

    item_type = name.upper().replace("-", "_")
    await send("POST", "/admin/rate-limit/config", {"configName": name, "maxPerWindow": 9, "windowSize": "PT1S"})
    await send("POST", "/api/v1/slots", {"eventId": f"{name}-event", "configName": name, "requestedTime": AT})
    await send("PUT", f"/admin/plans/{name}", {"algorithm": "fixed_window", "limit": 9, "window": "P30D"})
    await send("POST", "/api/v1/limits/acquire", {"key": f"{name}-key", "plans": [name], "cost": 2})
    async with DispatchQueue.open(url) as queue:
        await queue.configure(item_type, enabled=False, admission_plan=name)
        for item in ("waits", "dead", "unknown"):
            at = datetime(2031, 1, 1, tzinfo=UTC)
            await queue.enqueue(item_type, f"{name}-{item}", context={"about": name}, execute_at=at, lane=name)
        worker = WorkerInfo(name, name, 1, "1", "local", ("dispatch",), (item_type,), None)
        await queue.store.workers.beat(worker, 0)
    await send("PUT", f"/admin/periodic/{name}", {"itemType": item_type, "every": "PT1H", "enabled": False})
    for item, status in (("dead", "DEAD_LETTER"), ("unknown", "UNKNOWN")):
        _execute(url, f"UPDATE paceline_dispatch_queue SET queue_status = '{status}' WHERE item_id = '{name}-{item}'")
    async with Downstream(name, url, rate="50/second") as downstream, downstream.call():
        pass


def _execute(url: str, statement: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


def rows_of_others(url: str) -> list[tuple[str, str]]:
    """Every row of the database that names the other team; without the audit, which records what was refused."""
    engine = sa.create_engine(url)
    found = []
    with engine.connect() as connection:
        for table in sa.inspect(connection).get_table_names():
            if "audit" not in table and "rollup" not in table:
                rows = connection.execute(sa.text(f"SELECT * FROM {table}"))
                found += [(table, str(row)) for row in rows if OTHER.search(str(row))]
    engine.dispose()
    return sorted(found)


B, B_TYPE = "team-b-thing", "TEAM_B_THING"
OF_B_ITEMS = (
    "",
    "/stats",
    "/items",
    "/errors",
    "/lanes",
    f"/items/{B}-waits",
    "/audit",
    "/preview?change=cancel&prefix=x",
)
BOUND: dict[tuple[str, str], list[tuple[str, Any]]] = {
    ("POST", "/api/v1/slots"): [
        ("", {"eventId": "new", "configName": B, "requestedTime": AT}),
        ("", {"eventId": "new", "configNames": ["team-a-thing", B], "requestedTime": AT}),
        ("", {"eventId": f"{B}-event", "configName": "team-a-thing", "requestedTime": AT}),
        ("", {"eventId": "team-b-hidden-event", "configNames": ["team-a-thing"], "requestedTime": AT}),
        ("", {"eventId": "new", "requestedTime": AT}),
    ],
    ("GET", "/api/v1/slots"): [
        ("", None),
        (f"?configName={B}", None),
        ("?total=true", None),
        ("?sort=-scheduledTime", None),
    ],
    ("POST", "/api/v1/slots/replan"): [("", {"configName": B}), ("", {})],
    ("GET", "/api/v1/slots/{eventId}/explain"): [(f"/api/v1/slots/{B}-event/explain", None)],
    ("GET", "/api/v1/slots/{eventId}"): [(f"/api/v1/slots/{B}-event", None)],
    ("DELETE", "/api/v1/slots/{eventId}"): [(f"/api/v1/slots/{B}-event", None)],
    ("POST", "/api/v1/slots/batch"): [
        ("", {"configName": B, "events": [{"eventId": "new", "requestedTime": AT}]}),
        ("", {"configName": "team-a-thing", "events": [{"eventId": f"{B}-event", "requestedTime": AT}]}),
        (f"?configName={B}", b'{"eventId": "new", "requestedTime": "%b"}\n' % AT.encode()),
        (
            "?configName=team-a-thing",
            b'{"eventId": "n", "configName": "%b", "requestedTime": "%b"}\n' % (B.encode(), AT.encode()),
        ),
        ("?configName=team-a-thing", b'{"eventId": "%b-event", "requestedTime": "%b"}\n' % (B.encode(), AT.encode())),
    ],
    **{
        ("POST", f"/api/v1/limits/{operation}"): [
            ("", {"key": f"{B}-key", "plans": ["team-a-thing"]}),
            ("", {"key": "team-a-key", "plans": [B]}),
            ("", {"key": f"{B}-key", "plans": ["10/minute"]}),
        ]
        for operation in ("acquire", "peek", "refund", "reset")
    },
    ("POST", "/api/v1/limits/acquire/batch"): [
        ("", {"requests": [{"key": f"{B}-key", "plans": ["team-a-thing"]}]}),
        ("", {"requests": [{"key": "team-a-key", "plans": ["team-a-thing"]}, {"key": "team-a-key", "plans": [B]}]}),
    ],
    ("POST", "/api/v1/limits/store"): [
        ("", {"rules": [], "calls": [{"op": "plans"}]}),
        *(
            (
                "",
                {
                    "rules": [
                        {"plan": plan, "spec": {"algorithm": "fixed_window", "limit": 9, "window": "P30D"}},
                    ],
                    "calls": [{"op": op, "chain": [[key, 0, 1]], **more}],
                },
            )
            for plan, key in ((B, "team-a-key"), ("team-a-thing", f"{B}-key"))
            for op, more in (
                ("decide", {}),
                ("peek", {}),
                ("refund", {}),
                ("reset", {}),
                ("settle", {"id": "x", "actual": [1]}),
                ("renew", {"id": "x", "ttlUs": 1_000_000}),
            )
        ),
    ],
    ("GET", "/api/v1/forecast"): [(f"?configName={B}", None), ("", None)],
    ("GET", "/api/v1/search"): [("?q=team", None), (f"?q={B}-key", None), (f"?q={B}", None)],
    ("GET", "/api/v1/console/overview"): [("", None)],
    ("GET", "/api/v1/console/history"): [("", None), ("?range=P1D", None)],
    ("GET", "/api/v1/console/heat-map"): [(f"?configName={B}", None), ("", None)],
    ("GET", "/api/v1/console/page"): [
        ("?read=/admin/dispatch&read=/admin/plans&read=/admin/rate-limit/configs&read=/api/v1/slots", None),
        (f"?read=/admin/dispatch/{B_TYPE}&read=/admin/audit&read=/api/v1/console/overview", None),
    ],
    ("GET", "/api/v1/console/stream"): [("", None), ("?read=/admin/dispatch&read=/admin/workers", None)],
    ("GET", "/admin/rate-limit/config"): [(f"?name={B}", None), ("", None)],
    ("POST", "/admin/rate-limit/config"): [
        ("", {"configName": B, "maxPerWindow": 1}),
        ("", {"configName": "team-a-new", "maxPerWindow": 1, "windowSize": "PT1S", "follow": B}),
        ("", {"configName": "*", "maxPerWindow": 1, "windowSize": "PT1S"}),
    ],
    ("GET", "/admin/rate-limit/configs"): [("", None), ("?search=team", None), ("?limit=1", None)],
    ("GET", "/admin/rate-limit/config/history"): [(f"?name={B}", None)],
    ("GET", "/admin/plans"): [("", None)],
    ("GET", "/admin/plans/{name}"): [(f"/admin/plans/{B}", None)],
    ("PUT", "/admin/plans/{name}"): [(f"/admin/plans/{B}", "1/minute")],
    ("DELETE", "/admin/plans/{name}"): [(f"/admin/plans/{B}", None)],
    ("GET", "/admin/dispatch"): [("", None), ("?stats=true", None)],
    **{
        ("GET", f"/admin/dispatch/{{itemType}}{re.sub('/items/.*', '/items/{itemId}', part.partition('?')[0])}"): [
            (f"/admin/dispatch/{B_TYPE}{part}", None)
        ]
        for part in OF_B_ITEMS
    },
    ("PATCH", "/admin/dispatch/{itemType}"): [
        (f"/admin/dispatch/{B_TYPE}", {"enabled": True}),
        ("/admin/dispatch/TEAM_A_THING", {"admissionPlan": B}),
    ],
    ("POST", "/admin/dispatch/{itemType}/requeue"): [(f"/admin/dispatch/{B_TYPE}/requeue", {"status": "DEAD_LETTER"})],
    ("POST", "/admin/dispatch/{itemType}/discard"): [(f"/admin/dispatch/{B_TYPE}/discard", {"status": "DEAD_LETTER"})],
    ("POST", "/admin/dispatch/{itemType}/cancel"): [(f"/admin/dispatch/{B_TYPE}/cancel", {"ids": [f"{B}-waits"]})],
    ("POST", "/admin/dispatch/{itemType}/resolve"): [
        (f"/admin/dispatch/{B_TYPE}/resolve", {"ids": [f"{B}-unknown"], "outcome": "done"})
    ],
    ("POST", "/admin/dispatch/{itemType}/reschedule"): [
        (f"/admin/dispatch/{B_TYPE}/reschedule", {"filter": {"prefix": "team"}, "priority": 1})
    ],
    ("GET", "/admin/workers"): [("", None)],
    ("GET", "/admin/downstreams"): [("", None)],
    ("PATCH", "/admin/downstreams/{name}"): [(f"/admin/downstreams/{B}", {"paused": True})],
    ("GET", "/admin/flow"): [(f"?itemType={B_TYPE}", None), (f"?configName={B}", None)],
    ("GET", "/admin/periodic"): [("", None)],
    ("GET", "/admin/periodic/{name}"): [(f"/admin/periodic/{B}", None)],
    ("PUT", "/admin/periodic/{name}"): [
        (f"/admin/periodic/{B}", {"itemType": "TEAM_A_THING", "every": "PT1H"}),
        ("/admin/periodic/team-a-new", {"itemType": B_TYPE, "every": "PT1H"}),
    ],
    ("DELETE", "/admin/periodic/{name}"): [(f"/admin/periodic/{B}", None)],
    ("POST", "/admin/periodic/{name}/trigger"): [(f"/admin/periodic/{B}/trigger", None)],
    ("POST", "/api/v1/remote/look"): [],  # and of the other two: below, each method
    ("POST", "/api/v1/remote/submit"): [],
    ("POST", "/admin/remote"): [],
}
"""What team A asks of routes that are divided by names: the end of the address, or all of it, and the body."""
PARTLY = {
    ("POST", "/api/v1/slots/batch"),
    ("POST", "/api/v1/limits/store"),
    ("GET", "/api/v1/search"),
    ("GET", "/api/v1/console/page"),
    ("GET", "/api/v1/console/stream"),
}
"""Routes with an answer for each part of a request."""
ECHO = rf'"query":"[^"]+"|/admin/dispatch/{B_TYPE}|{B}-event'
"""What an answer repeats of its request."""


async def test_every_route_shows_and_changes_nothing_of_others(site: Site) -> None:
    before = rows_of_others(site.database_url)
    assert {table for table, _ in before} >= {"paceline_dispatch_queue", "paceline_slot"}, before
    routes = {
        (method.upper(), path)
        for path, operations in site.app.openapi()["paths"].items()
        for method in operations
        if path.startswith(("/api", "/admin")) and not path.startswith(CALLBACKS)
    }
    assert BOUND.keys() <= routes
    for method, path in sorted(routes - BOUND.keys()):
        refused = await site.call(method, re.sub(r"{\w+}", B, path), json={})
        assert (refused.status_code, "team-a-*" in refused.text) == (403, True), (method, path, refused.text)
    for (method, path), asked in BOUND.items():
        for address, body in asked:
            url = address if address.startswith("/") else path + address
            options = {"json": body} if not isinstance(body, bytes) else {"content": body}
            fields = {"Content-Type": "application/x-ndjson"} if isinstance(body, bytes) else {}
            answer = await site.http.request(method, url, headers={**site.team, **fields}, **options)
            about = (method, url, body, answer.status_code, answer.text)
            assert not SECRET.search(answer.text.replace("team-b-hidden-event", "")), about
            if (method, path) in PARTLY:
                assert not OTHER.search(re.sub(ECHO, "", answer.text)), about
            else:
                expected = {400, 403, 404} if method != "GET" or OTHER.search(url) else {200, 403}
                assert answer.status_code in expected, about
                assert answer.status_code != 200 or not OTHER.search(answer.text), about
    assert rows_of_others(site.database_url) == before


REMOTE: dict[str, dict[str, list[tuple[Any, ...]]]] = {
    "slots": {
        "find": [(f"{B}-event",)],
        "policy": [(B,)],
        "check_configs": [(B,), (["team-a-thing", B],)],
        "history": [(B,)],
        "configs": [()],
        "page": [(), (SlotFilter.of(B),)],
        "count": [(SlotFilter.of(B),)],
        "beginning": [("team",)],
        "explain": [(f"{B}-event",)],
        "preview": [(B, {"max_per_window": 1})],
        "heat_map": [(B,)],
        "forecast": [(B,), (["team-a-thing", B],)],
        "assign": [("new", B, AT), ("new", ["team-a-thing", B], AT), (f"{B}-event", "team-a-thing", AT)],
        "book_groups": [([BookingGroup((B,), [SlotRequest.of("new", AT)])],)],
        "cancel": [(f"{B}-event",)],
        "ensure": [(B, WindowPolicy(1, "PT1S"))],
        "configure": [(B, WindowPolicy(1, "PT1S")), ("team-a-thing", WindowPolicy(1, "PT1S", follow=B))],
        "change": [(B, {"max_per_window": 1})],
        "replan": [(B,)],
        "prune": [(datetime(2026, 1, 1, tzinfo=UTC),)],
    },
    "queue": {
        **{
            method: [(B_TYPE,)]
            for method in ("config", "stats", "list", "count", "error_groups", "lanes", "audit", "pause", "resume")
        },
        "configs": [()],
        "workers": [()],
        "unserved": [()],
        "progress_of": [(B_TYPE, [f"{B}-waits"])],
        "find": [(B_TYPE, f"{B}-waits")],
        "show": [(B_TYPE, f"{B}-waits")],
        "preview": [(B_TYPE, "cancel")],
        "define": [(DispatchConfig(item_type=B_TYPE),), (DispatchConfig(item_type="TEAM_A_NEW", admission_plan=B),)],
        "declare": [
            (DispatchConfig(item_type=B_TYPE, concurrency=1),),
            (DispatchConfig(item_type="TEAM_A_THING", admission_plan=B),),
        ],
        "enqueue_requests": [
            ([EnqueueRequest.of(B_TYPE, "new", {}, AT)],),
            ([EnqueueRequest.of("TEAM_A_THING", "new", {}, AT)._replace(slot_id=f"{B}-event")],),
        ],
        "enqueue_group": [
            (EnqueueRequest.of("TEAM_A_THING", "head", {}, AT), [EnqueueRequest.of(B_TYPE, "new", {}, AT)]),
            (EnqueueRequest.of(B_TYPE, "head", {}, AT), [EnqueueRequest.of("TEAM_A_THING", "new", {}, AT)]),
        ],
        "configure": [(B_TYPE,)],
        **{method: [(B_TYPE, [f"{B}-dead"])] for method in ("requeue", "discard", "cancel", "reschedule")},
        "resolve": [(B_TYPE, [f"{B}-unknown"], "done")],
        "prune": [(datetime(2026, 1, 1, tzinfo=UTC),)],
    },
}


@pytest.mark.parametrize("api", [SLOTS, QUEUE], ids=["slots", "queue"])
async def test_every_remote_method_shows_and_changes_nothing_of_others(site: Site, api: RemoteApi) -> None:
    before = rows_of_others(site.database_url)
    assert REMOTE[api.target].keys() == api.methods.keys()
    for name, calls in REMOTE[api.target].items():
        need = api.methods[name].need
        for arguments in calls:
            call = {"method": name, "arguments": api.arguments_of(name, arguments, {})}
            body = {"target": api.target, "calls": [call]}
            answer = await site.call("POST", need.path, json=body)
            assert answer.status_code == 200, (name, answer.text)
            (result,) = answer.json()["results"]
            shown = str(result)
            assert not SECRET.search(shown), (name, shown)
            if need is not Need.LOOK or (arguments and arguments != ("team",)):
                assert "error" in result, (name, arguments, shown)
            else:
                assert not OTHER.search(shown), (name, shown)
    assert rows_of_others(site.database_url) == before


async def test_a_team_sees_and_changes_its_own(site: Site) -> None:
    async def ask(method: str, path: str, body: Any = None) -> Any:
        answer = await site.call(method, path, json=body)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    configs = await ask("GET", "/admin/rate-limit/configs")
    assert [one["configName"] for one in configs["configs"]] == ["team-a-hidden", "team-a-thing"]
    assert [one["configName"] for one in (await ask("GET", "/admin/rate-limit/configs?limit=1"))["configs"]] == [
        "team-a-hidden"
    ]
    assert {one["name"] for one in (await ask("GET", "/admin/plans"))["plans"]} == {"team-a-hidden", "team-a-thing"}
    types = (await ask("GET", "/admin/dispatch?stats=true"))["itemTypes"]
    assert {one["itemType"] for one in types} == {"TEAM_A_HIDDEN", "TEAM_A_THING"}
    slots = await ask("GET", "/api/v1/slots?total=true")
    assert ({one["eventId"] for one in slots["slots"]}, slots["total"]) == (
        {"team-a-thing-event", "team-a-hidden-event"},
        2,
    )
    workers = await ask("GET", "/admin/workers")
    assert {one["host"] for one in workers["workers"]} == {"team-a-thing", "team-a-hidden"}
    assert {one["name"] for one in (await ask("GET", "/admin/downstreams"))["downstreams"]} == {
        "team-a-thing",
        "team-a-hidden",
    }
    found = await ask("GET", "/api/v1/search?q=team")
    assert {one["kind"] for one in found["results"]} == {"event", "config", "queue", "item"}
    overview = await ask("GET", "/api/v1/console/overview")
    assert {one["itemType"] for one in overview["queues"]} == {"TEAM_A_HIDDEN", "TEAM_A_THING"}
    assert overview["flow"]["name"].startswith("TEAM_A")
    page = await ask("GET", "/api/v1/console/page?read=/admin/plans&read=/admin/audit")
    assert [part["status"] for part in page["parts"].values()] == [200, 403]
    decided = await ask("POST", "/api/v1/limits/acquire", {"key": "team-a-key", "plans": ["team-a-thing", "9/minute"]})
    assert decided["allowed"]
    changed = await ask("POST", "/admin/rate-limit/config", {"configName": "team-a-thing", "maxPerWindow": 8})
    assert changed["maxPerWindow"] == 8
    assert await ask("POST", "/admin/dispatch/TEAM_A_THING/requeue", {"status": "DEAD_LETTER"}) == {"count": 1}
    assert (await ask("POST", "/admin/periodic/team-a-thing/trigger"))["itemId"].startswith("team-a-thing@")
    assert (await ask("PATCH", "/admin/downstreams/team-a-thing", {"paused": True}))["paused"] is not None
    booked = await ask("POST", "/api/v1/slots", {"eventId": "a-1", "configName": "team-a-thing", "requestedTime": AT})
    assert (await ask("DELETE", "/api/v1/slots/a-1"))["scheduledTime"] == booked["scheduledTime"]


async def test_metrics_name_what_the_reader_may_see(site: Site) -> None:
    every = await site.http.get("/metrics", headers={"Authorization": f"Bearer {ADMIN}"})
    assert 'config="team-b-thing"' in every.text
    team = (await site.call("GET", "/metrics")).text
    assert ('config="team-a-thing"' in team, OTHER.search(team)) == (True, None)
    anonymous = (await site.http.get("/q/metrics")).text
    assert not re.search(r'"team', anonymous, re.IGNORECASE)
    coded = re.findall(r'rate_limiter_slots_assigned_total{config="(name-[0-9a-f]{8})"} 1.0', anonymous)
    assert len(set(coded)) >= 3, "the numbers stay"
    assert (await site.http.get("/metrics", headers={"Authorization": "Bearer wrong"})).status_code == 401


async def test_a_token_has_a_rate_of_its_own(site: Site) -> None:
    asked = [await site.http.get("/api/v1/forecast", headers=site.slow) for _ in range(3)]
    assert [one.status_code for one in asked] == [200, 200, 429]
    assert int(asked[2].headers["retry-after"]) > 0
    assert (await site.http.get("/admin/plans", headers={"Authorization": f"Bearer {ADMIN}"})).status_code == 200


@pytest.mark.parametrize("original", [SlotScheduler, DispatchQueue])
async def test_what_is_offered_later_is_refused_until_somebody_decides(site: Site, original: type) -> None:
    bound = next(iter(site.app.state.services.bound.values()))
    of_names = bound.slots if original is SlotScheduler else bound.queue
    public = {name for name, _ in inspect.getmembers(original, inspect.isfunction) if not name.startswith("_")}
    assert public - {"slot_carriers"} <= vars(type(of_names)).keys()
