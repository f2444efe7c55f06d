"""The tables of docs/howto/coming-from.md, executed: a program of a peer and ours, the same requests, the same
answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from flask import Flask, request

from paceline import Limiter, Plan, SlidingLog
from paceline.integrations import drf
from paceline.integrations import fastapi as ours
from paceline.integrations import flask as ours_in_flask
from paceline.testing import FakeClock
from tests.integration.sites import django_integration, override_settings
from tests.unit.limits.both import START

PATHS = ("/a", "/a", "/b", "/a", "/b", "/b", "/free", "/a", "/free", "/b")
"""Two routes with limits, one without, asked in turn."""


def everyone(*_: Any) -> str:
    return "one"


KEY = ours.everyone("one")


def statuses(get: Callable[..., Any], requests: Sequence[str] = PATHS, **headers: str) -> list[int]:
    return [get(path, headers=headers).status_code for path in requests]


# -- slowapi -----------------------------------------------------------------------------------------------------------


class Slowapi:
    """An application with slowapi's limiter; `options` are its own."""

    def __init__(self, **options: Any) -> None:
        slowapi = import_module("slowapi")
        middleware = import_module("slowapi.middleware")
        self.limiter = slowapi.Limiter(key_func=everyone, **options)
        self.app = FastAPI()
        self.app.state.limiter = self.limiter
        self.app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)
        self.app.add_middleware(middleware.SlowAPIMiddleware)


class Fastapi:
    """The same application with ours; `options` are those of `install`."""

    def __init__(self, **options: Any) -> None:
        self.app = FastAPI()
        ours.install(self.app, Limiter("memory://"), **options)


def routes(app: FastAPI, **decorators: Callable[[Any], Any]) -> Callable[..., Any]:
    """The routes `/a`, `/b` and `/free`, each with its decorator."""

    async def a(request: Request) -> str:
        return "a"

    async def b(request: Request) -> str:
        return "b"

    async def free(request: Request) -> str:
        return "free"

    for endpoint in (a, b, free):
        decorate = decorators.get(endpoint.__name__, lambda view: view)
        app.get(f"/{endpoint.__name__}")(decorate(endpoint))
    return TestClient(app, client=("127.0.0.1", 50000)).get


def test_slowapi_a_limit_counts_for_its_route() -> None:
    peer, own = Slowapi(), Fastapi()
    theirs = routes(peer.app, a=peer.limiter.limit("3/minute"), b=peer.limiter.limit("3/minute"))
    same = ours.rate_limit("3/minute", key=KEY)
    assert statuses(routes(own.app, a=same, b=same)) == statuses(theirs) == [200] * 7 + [429, 200, 429]


def test_slowapi_shared_limit() -> None:
    peer, own = Slowapi(), Fastapi()
    shared = peer.limiter.shared_limit("3/minute", scope="search")
    theirs = routes(peer.app, a=shared, b=shared)
    same = ours.rate_limit("3/minute", key=KEY, scope="search")
    assert statuses(routes(own.app, a=same, b=same)) == statuses(theirs)


def test_slowapi_default_limits_and_exempt() -> None:
    peer, own = Slowapi(default_limits=["2/minute"]), Fastapi(defaults=[ours.Limit("2/minute", key=KEY)])
    theirs = routes(peer.app, b=peer.limiter.limit("3/minute"), free=peer.limiter.exempt)
    mine = routes(own.app, b=ours.rate_limit("3/minute", key=KEY), free=ours.exempt)
    assert statuses(mine) == statuses(theirs)


def test_slowapi_override_defaults() -> None:
    peer, own = Slowapi(default_limits=["2/minute"]), Fastapi(defaults=[ours.Limit("2/minute", key=KEY)])
    theirs = routes(peer.app, b=peer.limiter.limit("9/minute", override_defaults=False))
    mine = routes(own.app, b=ours.rate_limit("9/minute", key=KEY, override_defaults=False))
    assert statuses(mine, ["/b"] * 4) == statuses(theirs, ["/b"] * 4) == [200, 200, 429, 429]


def test_slowapi_application_limits() -> None:
    whole = ours.Limit("4/minute", key=KEY, shared=True, override_defaults=False)
    peer, own = Slowapi(application_limits=["4/minute"]), Fastapi(defaults=[whole])
    requests = ["/free", "/free", "/free", "/free", "/free"]
    assert statuses(routes(own.app), requests) == statuses(routes(peer.app), requests) == [200] * 4 + [429]


def test_slowapi_cost_exempt_when_and_a_limit_from_a_function() -> None:
    peer, own = Slowapi(), Fastapi()
    theirs = routes(
        peer.app,
        a=peer.limiter.limit("4/minute", cost=2),
        b=peer.limiter.limit("1/minute", exempt_when=lambda: True),
        free=peer.limiter.limit(lambda: "1/minute"),
    )
    mine = routes(
        own.app,
        a=ours.rate_limit("4/minute", key=KEY, cost=2),
        b=ours.rate_limit("1/minute", key=KEY, exempt=lambda request: True),
        free=ours.rate_limit(lambda request: "1/minute", key=KEY),
    )
    assert statuses(mine) == statuses(theirs)


# -- flask-limiter -----------------------------------------------------------------------------------------------------


class FlaskLimiter:
    """An application with flask-limiter; `options` are its own."""

    def __init__(self, **options: Any) -> None:
        peer = import_module("flask_limiter")
        self.app = Flask("peer")
        self.limiter = peer.Limiter(everyone, app=self.app, storage_uri="memory://", **options)


class OursInFlask:
    """The same application with ours; `options` are those of `install`."""

    def __init__(self, **options: Any) -> None:
        self.app = Flask("ours")
        ours_in_flask.install(self.app, Limiter("memory://"), **options)


def views(app: Flask, **decorators: Callable[[Any], Any]) -> Callable[..., Any]:
    """The views `/a`, `/b` and `/free`, each with its decorator; the header `Status` says how they answer."""

    def a() -> tuple[str, int]:
        return "a", int(request.headers.get("Status", 200))

    def b() -> tuple[str, int]:
        return "b", int(request.headers.get("Status", 200))

    def free() -> tuple[str, int]:
        return "free", 200

    for view in (a, b, free):
        decorate = decorators.get(view.__name__, lambda undecorated: undecorated)
        methods = ["GET", "POST"]
        app.add_url_rule(f"/{view.__name__}", view.__name__, decorate(view), methods=methods)
    return app.test_client().get


def test_flask_limiter_a_limit_counts_for_its_route() -> None:
    peer, own = FlaskLimiter(), OursInFlask()
    theirs = views(peer.app, a=peer.limiter.limit("3 per minute"), b=peer.limiter.limit("3 per minute"))
    same = ours_in_flask.rate_limit("3 per minute", key=KEY)
    assert statuses(views(own.app, a=same, b=same)) == statuses(theirs) == [200] * 7 + [429, 200, 429]


def test_flask_limiter_defaults_application_limits_and_exempt() -> None:
    peer = FlaskLimiter(default_limits=["2/minute"], application_limits=["5/minute"])
    whole = ours.Limit("5/minute", key=KEY, shared=True, override_defaults=False)
    own = OursInFlask(defaults=[ours.Limit("2/minute", key=KEY), whole])
    theirs = views(peer.app, b=peer.limiter.limit("4/minute"), free=peer.limiter.exempt)
    mine = views(own.app, b=ours_in_flask.rate_limit("4/minute", key=KEY), free=ours_in_flask.exempt)
    # Not after a denial: theirs has charged the limits that it asked first, ours none.
    requests = ["/a", "/a", "/b", "/b", "/b", "/b", "/free", "/a"]
    assert statuses(mine, requests) == statuses(theirs, requests) == [200] * 5 + [429, 200, 429]


def test_flask_limiter_override_defaults() -> None:
    peer, own = FlaskLimiter(default_limits=["2/minute"]), OursInFlask(defaults=[ours.Limit("2/minute", key=KEY)])
    theirs = views(peer.app, b=peer.limiter.limit("9/minute", override_defaults=False))
    mine = views(own.app, b=ours_in_flask.rate_limit("9/minute", key=KEY, override_defaults=False))
    assert statuses(mine, ["/b"] * 4) == statuses(theirs, ["/b"] * 4) == [200, 200, 429, 429]


def test_flask_limiter_shared_limit_per_method_and_deduct_when() -> None:
    peer, own = FlaskLimiter(), OursInFlask()
    shared = peer.limiter.shared_limit("3/minute", scope="search")
    theirs = views(peer.app, a=shared, b=shared)
    same = ours_in_flask.rate_limit("3/minute", key=KEY, scope="search")
    assert statuses(views(own.app, a=same, b=same)) == statuses(theirs)

    peer, own = FlaskLimiter(), OursInFlask()
    views(peer.app, a=peer.limiter.limit("1/minute", per_method=True))
    by_method = ours.composite(KEY, ours.method())
    views(own.app, a=ours_in_flask.rate_limit("1/minute", key=by_method))
    for app in (peer.app, own.app):
        client = app.test_client()
        assert [client.open("/a", method=name).status_code for name in ("GET", "POST", "GET")] == [200, 200, 429]

    peer, own = FlaskLimiter(), OursInFlask()
    failed = peer.limiter.limit("1/minute", deduct_when=lambda response: response.status_code == 500)
    theirs = views(peer.app, a=failed)
    mine = views(
        own.app,
        a=ours_in_flask.rate_limit("1/minute", key=KEY, charge_when=lambda response: response.status_code == 500),
    )
    for get in (theirs, mine):
        assert statuses(get, ["/a", "/a"]) + statuses(get, ["/a", "/a"], Status="500") == [200, 200, 500, 429]


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fixed-window", "moving-window", "sliding-window-counter"])
def test_limits_every_strategy(strategy: str) -> None:
    theirs = import_module("limits")
    storage = import_module("limits.storage")
    strategies = import_module("limits.strategies")
    from paceline.compat import limits as compat

    peer = strategies.STRATEGIES[strategy](storage.storage_from_string("memory://"))
    own = compat.STRATEGIES[strategy](compat.storage_from_string("memory://"))
    answers = []
    for limiter, item in ((peer, theirs.parse("5/hour")), (own, compat.parse("5/hour"))):
        seen: list[Any] = [limiter.test(item, "u"), limiter.hit(item, "u", cost=2), limiter.hit(item, "u", "other")]
        seen += [limiter.hit(item, "u") for _ in range(4)]
        seen += [limiter.get_window_stats(item, "u").remaining, limiter.test(item, "u")]
        limiter.clear(item, "u")
        seen += [limiter.hit(item, "u", cost=5), limiter.hit(item, "u"), limiter.hit(item, "v", cost=6)]
        answers.append(seen)
    assert answers[0] == answers[1]


# -- Django ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def limited_django() -> Iterator[FakeClock]:
    """Settings with a limiter of ours, whose clock is returned."""
    clock = FakeClock(START)
    plans = [Plan("visitor", SlidingLog(3, "PT1M"))]
    django_integration._request_limiter.cache_clear()
    with override_settings(PACELINE_LIMITER=Limiter("memory://", plans=plans, clock=clock)):
        yield clock
    django_integration._request_limiter.cache_clear()


@pytest.mark.usefixtures("limited_django")
def test_django_ratelimit_groups() -> None:
    """A limit counts for its view, or for all views of a group."""
    decorators = import_module("django_ratelimit.decorators")
    exceptions = import_module("django_ratelimit.exceptions")
    from django.http import HttpRequest, HttpResponse
    from django.test import RequestFactory

    def a(request: HttpRequest) -> HttpResponse:
        return HttpResponse("a")

    def b(request: HttpRequest) -> HttpResponse:
        return HttpResponse("b")

    def answers(first: Any, second: Any) -> list[bool]:
        allowed = []
        for view in (first, first, second, first, second, second):
            try:
                allowed.append(view(RequestFactory().get("/")).status_code == 200)
            except exceptions.Ratelimited:
                allowed.append(False)
        return allowed

    peer, own = decorators.ratelimit, django_integration.rate_limit
    theirs = [peer(key="ip", rate="2/h", block=True)(view) for view in (a, b)]
    mine = [own("2/h", key=KEY)(view) for view in (a, b)]
    assert answers(*mine) == answers(*theirs) == [True, True, True, False, True, False]
    theirs = [peer(group="ours", key="ip", rate="2/h", block=True)(view) for view in (a, b)]
    mine = [own("2/h", key=KEY, scope="ours")(view) for view in (a, b)]
    assert answers(*mine) == answers(*theirs) == [True, True, False, False, False, False]


def test_a_sliding_log_counts_as_the_rest_framework_does(limited_django: FakeClock) -> None:
    from django.test import RequestFactory
    from rest_framework.request import Request as RestRequest
    from rest_framework.throttling import SimpleRateThrottle
    from rest_framework.views import APIView

    class Theirs(SimpleRateThrottle):  # type: ignore[misc]  # the framework publishes no types
        rate = "3/min"

        def get_cache_key(self, request: Any, view: Any) -> str:
            return "one"

        @staticmethod
        def timer() -> float:
            return limited_django.monotonic_us() / 1_000_000

    class Ours(drf.RateThrottle):
        plans, key = "visitor", KEY

    answers: list[list[bool]] = []
    for seconds in (0, 25, 25, 5, 10, 20, 1, 30, 0, 60):
        limited_django.advance(seconds)
        made = RestRequest(RequestFactory().get("/"))
        view = APIView()
        view.headers = {}
        answers.append([Theirs().allow_request(made, view), Ours().allow_request(made, view)])
    assert [own for _, own in answers] == [theirs for theirs, _ in answers]
    assert [own for _, own in answers].count(False) == 3
