"""Limits and plans over HTTP, as the contract has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from paceline import ConfigurationError, Limiter, NotFound, Plan
from paceline.testing import eventually
from paceline.testing.servers.redis import RedisServer
from tests.acceptance.service import Service, run

BUCKET = {"algorithm": "token_bucket", "capacity": 10, "perSecond": 1}
HOUR = {"algorithm": "fixed_window", "limit": 3, "window": "PT1H"}


HOURLY = {"key": "x", "plans": ["hour"]}


@pytest.fixture(params=["database", "memory", "redis"], scope="module")
def http(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service on each store."""
    environment = {"PACELINE_LIMITS_STORE": "auto" if request.param == "redis" else request.param}
    redis: Any = None
    if request.param == "redis":
        redis = RedisServer()
        environment["PACELINE_REDIS_URL"] = redis.start().url
    with Service(tmp_path_factory.mktemp("limits"), **environment) as service, service.client() as client:
        for name, plan in {"gold": BUCKET, "hour": HOUR}.items():
            assert client.put(f"/admin/plans/{name}", json=plan).status_code == 200
        yield client
    if redis is not None:
        redis.close()


def ask(http: httpx.Client, verb: str, key: str, *plans: str, **more: Any) -> httpx.Response:
    return http.post(f"/api/v1/limits/{verb}", json={"key": key, "plans": list(plans), **more})


def test_acquire_decides_and_tells(http: httpx.Client) -> None:
    admitted = ask(http, "acquire", "told", "gold", "hour", cost=2)
    assert admitted.status_code == 200
    assert admitted.headers["RateLimit-Policy"] == '"gold";q=10;w=10, "hour";q=3;w=3600'
    assert admitted.headers["RateLimit"] == '"gold";r=8;t=1, "hour";r=1;t=3600'
    assert "Retry-After" not in admitted.headers
    body = admitted.json()
    assert (body["allowed"], body["remaining"], body["limit"], body["plan"]) == (True, 1, 3, "hour")
    assert (body["reason"], body["degraded"], body["retryAfter"]) == ("OK", False, 0)
    assert [(plan["plan"], plan["remaining"]) for plan in body["plans"]] == [("gold", 8), ("hour", 1)]

    denied = ask(http, "acquire", "told", "gold", "hour", cost=2)
    assert denied.status_code == 429
    assert denied.headers["Content-Type"] == "application/problem+json"
    assert 3590 < int(denied.headers["Retry-After"]) <= 3600
    body = denied.json()
    assert body["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert (body["title"], body["status"], body["violated-policies"]) == ("Rate Limit Exceeded", 429, ["hour"])
    assert (body["allowed"], body["plan"], body["reason"]) == (False, "hour", "DENIED")
    assert 3590 < body["retryAfter"] <= 3600
    # The denial consumed nothing: gold has what it had, or more by now.
    assert body["plans"][0]["remaining"] >= 8


def test_a_batch_is_decided_one_by_one(http: httpx.Client) -> None:
    requests = [
        {"key": "many", "plans": ["hour"], "cost": 2},
        {"key": "many", "plans": ["gold", "hour"], "cost": 2},
        {"key": "many", "plans": ["hour"]},
        {"key": "other", "plans": ["nobody's"]},
        {"key": "other", "plans": ["hour"], "cost": 4},
        {"key": "other", "plans": ["2/day"], "cost": None},
    ]
    answer = http.post("/api/v1/limits/acquire/batch", json={"requests": requests})
    assert answer.status_code == 200
    decisions = answer.json()["decisions"]
    assert [decision.get("allowed") for decision in decisions] == [True, False, True, None, None, True]
    assert [decision["error"]["status"] for decision in decisions[3:5]] == [404, 400]
    assert decisions[4]["error"]["field"] == "cost"
    assert (decisions[1]["plan"], decisions[1]["reason"]) == ("hour", "DENIED")
    assert set(decisions[0]) == set(ask(http, "peek", "many", "hour").json())
    assert ask(http, "peek", "many", "gold", "hour").json()["plans"][0]["remaining"] == 10


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": {}}, "requests"),
        ({"requests": [{"key": "x", "plans": ["hour"]}] * 1001}, "requests"),
        ({"requests": [{"key": "x", "plans": ["hour"]}, 7]}, "requests[1]"),
        ({"requests": [{"key": "x", "plans": ["hour"]}, {"plans": ["hour"]}]}, "requests[1].key"),
        ({"requests": [{"key": "x", "plans": ["hour"]}, {"key": "x", "plans": "hour"}]}, "requests[1].plans"),
        ({"requests": [{"key": "x", "plans": ["hour"]}, {"key": "x", "plans": ["hour", 7]}]}, "requests[1].plans[1]"),
        ({"requests": [HOURLY, HOURLY | {"cost": 1.5}]}, "requests[1].cost"),
        ({"requests": [{"key": "x", "plans": ["hour"]}, {"key": "x", "plans": ["hour"], "n": 1}]}, "requests[1].n"),
    ],
)  # fmt: skip
def test_a_batch_with_a_mistake_charges_nothing(http: httpx.Client, body: dict[str, Any], field: str) -> None:
    refused = http.post("/api/v1/limits/acquire/batch", json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert ask(http, "peek", "x", "hour").json()["remaining"] == 3


def test_peek_refund_and_reset(http: httpx.Client) -> None:
    assert ask(http, "acquire", "back", "hour", cost=3).json()["remaining"] == 0
    peeked = ask(http, "peek", "back", "hour")
    assert (peeked.status_code, peeked.json()["allowed"]) == (200, False)
    assert "Retry-After" not in peeked.headers
    assert ask(http, "refund", "back", "hour", cost=2).json()["remaining"] == 2
    assert ask(http, "peek", "back", "hour", cost=2).json()["allowed"] is True
    assert ask(http, "refund", "back", "hour", cost=3).json()["remaining"] == 3
    assert ask(http, "acquire", "back", "hour", cost=3).status_code == 200
    assert ask(http, "reset", "back", "hour").json()["remaining"] == 3
    assert ask(http, "acquire", "back", "hour", cost=3).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"key": "k", "plans": ["nobody's"]}, 404, None),
        ({"key": "bad", "plans": ["hour"], "cost": 0}, 400, "cost"),
        ({"key": "bad", "plans": ["hour"], "cost": -1}, 400, "cost"),
        ({"key": "bad", "plans": ["hour"], "cost": 4}, 400, "cost"),
        ({"key": "bad", "plans": ["hour"], "cost": 1.5}, 400, "cost"),
        ({"key": "bad", "plans": ["hour"], "cost": True}, 400, "cost"),
        ({"key": "bad", "plans": ["hour"], "cost": 10**30}, 400, "cost"),
        ({"key": "", "plans": ["hour"]}, 400, "key"),
        ({"key": "x" * 10_000_000, "plans": ["hour"]}, 400, "key"),
        ({"key": 7, "plans": ["hour"]}, 400, "key"),
        ({"plans": ["hour"]}, 400, "key"),
        ({"key": "bad"}, 400, "plans"),
        ({"key": "bad", "plans": []}, 400, "plans"),
        ({"key": "bad", "plans": "hour"}, 400, "plans"),
        ({"key": "bad", "plans": ["hour", "hour"]}, 400, "plans"),
        ({"key": "bad", "plans": ["hour", 7]}, 400, "plans[1]"),
        ({"key": "bad", "plans": ["hour"] * 65}, 400, "plans"),
        ({"key": "bad", "plans": ["hour"], "price": 1}, 400, "price"),
        ({"key": "bad", "plans": ["hour", "nobody's"]}, 404, None),
    ],
)
def test_bad_input_is_refused_and_consumes_nothing(
    http: httpx.Client, body: dict[str, Any], status: int, field: str | None
) -> None:
    refused = http.post("/api/v1/limits/acquire", json=body)
    assert refused.status_code == status, refused.text
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json().get("field") == field
    assert len(refused.content) < 1000
    assert ask(http, "peek", "bad", "hour").json()["remaining"] == 3


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"algorithm": "token_bucket", "capacity": 10, "perSecond": 0}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 10, "perSecond": -1}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 0, "perSecond": 1}, "capacity"),
        ({"algorithm": "token_bucket", "perSecond": 1}, "capacity"),
        ({"algorithm": "token_bucket", "capacity": 10, "perSecond": 1, "limit": 5}, "limit"),
        ({"algorithm": "fixed_window", "limit": 10, "window": "PT0S"}, "window"),
        ({"algorithm": "fixed_window", "limit": 10, "window": "an hour"}, "window"),
        ({"algorithm": "leaky", "limit": 10, "window": "PT1S"}, "algorithm"),
        ({"limit": 10, "window": "PT1S"}, "algorithm"),
        ("10/fortnight", "rate"),
        ({"rate": "10/minute", "limit": 5}, "limit"),
        ([], "body"),
        (BUCKET | {"onError": "panic"}, "onError"),
        (BUCKET | {"shadow": "yes"}, "shadow"),
        (BUCKET | {"overrides": {"vip": {"capacity": 0, "perSecond": 1}}}, "overrides.vip.capacity"),
        (BUCKET | {"name": "other"}, "name"),
    ],
)
def test_a_plan_that_cant_work_is_refused(http: httpx.Client, plan: Any, field: str) -> None:
    refused = http.put("/admin/plans/wrong", json=plan)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert http.get("/admin/plans/wrong").status_code == 404


def test_plans_are_changed_at_run_time(http: httpx.Client) -> None:
    shown = BUCKET | {"onError": "closed", "overrides": {"vip": BUCKET | {"capacity": 100}}}
    assert http.put("/admin/plans/changing", json=shown).json() == {"name": "changing"} | shown
    assert http.get("/admin/plans/changing").json() == {"name": "changing"} | shown
    listed = http.get("/admin/plans").json()["plans"]
    assert {"name": "hour"} | HOUR in listed
    assert [plan["name"] for plan in listed] == sorted(plan["name"] for plan in listed)
    assert ask(http, "acquire", "vip", "changing").json()["limit"] == 100
    assert ask(http, "acquire", "k", "changing", cost=10).json()["remaining"] == 0
    # A raised limit adds room at once.
    again = http.get("/admin/plans/changing").json() | {"capacity": 15}
    assert http.put("/admin/plans/changing", json=again).status_code == 200
    assert ask(http, "acquire", "k", "changing", cost=5).status_code == 200
    assert http.delete("/admin/plans/changing").json()["capacity"] == 15
    assert http.delete("/admin/plans/changing").status_code == 404
    assert ask(http, "acquire", "k", "changing").status_code == 404


def test_a_plan_may_be_a_rate(http: httpx.Client) -> None:
    day = {"algorithm": "fixed_window", "limit": 3, "window": "P1D"}
    shown = {"name": "rated", "algorithm": "several", "limits": [HOUR | {"limit": 2}, day]}
    assert http.put("/admin/plans/rated", json="2/hour;3/day").json() == shown
    assert http.put("/admin/plans/rated", json={"rate": "2/hour;3/day", "name": "rated"}).json() == shown
    assert http.put("/admin/plans/rated", json=shown).json() == shown
    answers = [ask(http, "acquire", "r", "rated") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].headers["RateLimit-Policy"] == '"rated;PT1H";q=2;w=3600, "rated;P1D";q=3;w=86400'
    assert answers[-1].json()["plan"] == "rated"
    assert ask(http, "acquire", "r", "1/hour").status_code == 200
    assert ask(http, "acquire", "r", "1/hour").status_code == 429
    assert ask(http, "acquire", "r", "1/fortnight").json()["field"] == "plans"


def test_a_shadow_plan_never_denies(http: httpx.Client) -> None:
    assert http.put("/admin/plans/shadow", json=HOUR | {"shadow": True}).status_code == 200
    answers = [ask(http, "acquire", "s", "shadow", "gold") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert answers[-1].json()["plans"][0]["allowed"] is False
    assert '"shadow"' not in answers[-1].headers["RateLimit-Policy"]


def test_decisions_are_counted(http: httpx.Client) -> None:
    for _ in range(4):
        ask(http, "acquire", "counted", "hour")
    metrics = http.get("/metrics").text
    assert 'rate_limiter_decisions_total{outcome="DENIED",plan="hour"}' in metrics
    assert 'rate_limiter_decisions_total{outcome="OK",plan="hour"}' in metrics


def test_concurrent_callers_never_get_more_than_there_is(http: httpx.Client) -> None:
    plan = {"algorithm": "sliding_log", "limit": 50, "window": "PT1H"}
    assert http.put("/admin/plans/fifty", json=plan).status_code == 200
    statuses: list[int] = []

    def call() -> None:
        with httpx.Client(base_url=http.base_url, timeout=30) as client:
            statuses.extend(ask(client, "acquire", "crowd", "fifty").status_code for _ in range(15))

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (statuses.count(200), statuses.count(429)) == (50, 70)


async def test_plans_and_counts_survive_a_restart_and_are_shared_by_workers(tmp_path: Path) -> None:
    with Service(tmp_path) as service, service.client() as client:
        assert client.put("/admin/plans/hour", json=HOUR).status_code == 200
        assert ask(client, "acquire", "k", "hour", cost=2).status_code == 200
    with Service(tmp_path, "--workers", "2") as service:

        def fresh(verb: str, *arguments: Any, **more: Any) -> httpx.Response:
            # A connection of its own each, so that both workers get some.
            with service.client() as client:
                return ask(client, verb, *arguments, **more)

        assert {fresh("peek", "k", "hour").json()["remaining"] for _ in range(12)} == {1}
        assert sorted(fresh("acquire", "k", "hour").status_code for _ in range(12)) == [200] + [429] * 11
        with service.client() as client:
            assert client.put("/admin/plans/new", json=HOUR | {"limit": 7}).status_code == 200
        assert {fresh("peek", "k", "new").status_code for _ in range(12)} == {200}
        with service.client() as client:
            assert client.put("/admin/plans/new", json=HOUR | {"limit": 9}).status_code == 200
        await eventually(lambda: {fresh("peek", "k", "new").json()["limit"] for _ in range(12)} == {9})


def test_odd_names_and_keys_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with Service(tmp_path, PACELINE_DATABASE_URL=postgres_url) as service, service.client() as client:
        named = {"größe/a b": "gr%C3%B6%C3%9Fe/a%20b", "x" * 128: "x" * 128}
        for name, path in named.items():
            assert client.put(f"/admin/plans/{path}", json=HOUR).json() == {"name": name} | HOUR
            for key in ("k" * 1024, "é" * 1024, "💥", " ", "a|b%c:d{e}"):
                assert ask(client, "acquire", key, name).json()["remaining"] == 2
        for path in ("a%00b", "x" * 129, ""):
            refused = client.put(f"/admin/plans/{path}", json=HOUR)
            assert (refused.status_code, refused.json()["field"]) == (400, "name")
        assert client.delete("/admin/plans/a%00b").status_code == 404
        for key in ("\x00", "k" * 1025):
            assert ask(client, "acquire", key, "größe/a b").status_code == 400


async def test_peer_bug_11_redis_down_is_what_the_plan_says(tmp_path: Path, own_redis: RedisServer) -> None:
    with Service(tmp_path, PACELINE_REDIS_URL=own_redis.url) as service, service.client() as client:
        for policy in ("open", "closed", "fallback"):
            assert client.put(f"/admin/plans/{policy}", json=HOUR | {"onError": policy}).status_code == 200
            assert ask(client, "acquire", "k", policy).json()["reason"] == "OK"
        own_redis.kill()
        opened = ask(client, "acquire", "k", "open")
        assert (opened.status_code, opened.json()["reason"], opened.json()["degraded"]) == (200, "FAIL_OPEN", True)
        closed = ask(client, "acquire", "k", "closed")
        assert (closed.status_code, closed.json()["reason"]) == (429, "FAIL_CLOSED")
        assert int(closed.headers["Retry-After"]) >= 1
        fallen = [ask(client, "acquire", "k", "fallback") for _ in range(4)]
        assert [answer.status_code for answer in fallen] == [200, 200, 200, 429]
        assert ask(client, "refund", "k", "open").status_code == 503
        assert "rate_limiter_degraded_decisions_total" in client.get("/metrics").text
        own_redis.start()
        await eventually(lambda: ask(client, "acquire", "k", "closed").json()["reason"] == "OK")


def test_the_command_line_shares_plans_and_counts_with_the_service(tmp_path: Path) -> None:
    assert run(tmp_path, "plans", "set", "pair", "--capacity", "2", "--per-second", "0.001").returncode == 0
    first = run(tmp_path, "limits", "acquire", "k", "--plan", "pair")
    assert (first.returncode, first.stdout) == (0, "allowed: plan pair has 1 of 2 left\n")
    with Service(tmp_path) as service, service.client() as client:
        assert ask(client, "acquire", "k", "pair").json()["remaining"] == 0
        denied = run(tmp_path, "limits", "acquire", "k", "--plan", "pair")
        assert (denied.returncode, denied.stdout[:37]) == (1, "denied: plan pair has 0 of 2 left; re")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    tokens = {"PACELINE_API_TOKEN": "program", "PACELINE_ADMIN_TOKEN": "operator"}
    with Service(tmp_path_factory.mktemp("guarded"), **tokens) as service:
        with service.client(headers={"Authorization": "Bearer operator"}) as client:
            assert client.put("/admin/plans/hour", json=HOUR).status_code == 200
        yield service


def test_programs_count_together_at_a_service(guarded: Service) -> None:
    """A limiter without plans has those of the service, and counts where its own routes count."""
    with (
        Limiter(guarded.url, token="program") as first,
        Limiter(guarded.url, token="program") as second,
        guarded.client(headers={"Authorization": "Bearer program"}) as http,
    ):
        assert first.acquire("together", "hour").remaining == 2
        assert second.acquire("together", "hour").remaining == 1
        assert ask(http, "acquire", "together", "hour").json()["remaining"] == 0
        denied = first.acquire("together", ["hour", "100/day"])
        assert (denied.allowed, denied.plan, denied.degraded) == (False, "hour", False)
        first.reset("together", "hour")
        with second.reserve("together", "hour", 3) as reservation:
            assert reservation.settle(1)
        assert first.peek("together", "hour").remaining == 2
        with pytest.raises(NotFound):
            first.acquire("together", "platinum")


def test_a_program_needs_its_token_and_states_no_time(guarded: Service) -> None:
    for token in (None, "wrong"):
        with pytest.raises(ConfigurationError, match=r"^token: "):
            Limiter(guarded.url, token=token)
    body = {"rules": [{"plan": "hour", "spec": HOUR}], "calls": [{"op": "reset", "chain": [["u", 0, 1]], "nowUs": 1}]}
    with guarded.client(headers={"Authorization": "Bearer program"}) as http:
        assert http.post("/api/v1/limits/store", json=body).status_code == 403


def test_without_the_service_the_failure_policy_decides(tmp_path: Path) -> None:
    with Service(tmp_path, PACELINE_LIMITS_STORE="memory") as service:
        limiter = Limiter(service.url, plans=[Plan("gold", "3/hour", on_error="fallback"), Plan("silver", "3/hour")])
        assert [limiter.acquire("u", "gold").allowed for _ in range(4)] == [True, True, True, False]
    with limiter:
        assert [limiter.acquire("u", "gold").reason for _ in range(4)] == ["FALLBACK"] * 4
        assert limiter.acquire("u", "silver").reason == "FAIL_OPEN"
        assert limiter.breaker_state == "open"
