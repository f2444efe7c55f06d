"""Throttle classes of Django REST framework, in its own test client."""

# Django REST framework publishes no types.
# mypy: allow-subclassing-any

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.conf import settings
from django.http import StreamingHttpResponse
from django.test import override_settings
from django.urls import path

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=__name__)
    django.setup()

from rest_framework.exceptions import NotAuthenticated
from rest_framework.response import Response
from rest_framework.test import APIClient
from rest_framework.views import APIView

from paceline import ConfigurationError, FixedWindow, Limiter, Plan
from paceline.integrations import django as django_integration
from paceline.integrations.drf import (
    RateThrottle,
    ScopedThrottle,
    everyone,
    header,
    method,
    principal,
    route,
    throttle,
)
from paceline.integrations.limit import Limit

PLANS = [
    Plan("small", FixedWindow(limit=2, window="PT1H")),
    Plan("large", FixedWindow(limit=5, window="PT1H")),
    Plan("tokens", FixedWindow(limit=100, window="P1D")),
]
ALL = everyone("all")
urlpatterns: list[Any] = []


class Basic(APIView):
    authentication_classes: Any = ()
    permission_classes: Any = ()

    def get(self, request: Any, id: int = 0) -> Any:
        status = int(request.headers.get("X-Status", 200))
        if status == 401:
            raise NotAuthenticated
        if status == 500:
            raise RuntimeError("a mistake")
        headers = {"X-Tokens": request.headers.get("X-Tokens", "0")}
        if "X-Stream" in request.headers:
            return StreamingHttpResponse(iter(["one ", "two"]), headers=headers)
        if "X-Decision" in request.headers:
            return Response(str(request.rate_limit))
        return Response("hello", status, headers=headers)


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    limiter = Limiter(plans=PLANS)
    django_integration._request_limiter.cache_clear()
    with override_settings(
        ROOT_URLCONF=__name__,
        PACELINE_LIMITER=limiter,
        MIDDLEWARE=[],
        REST_FRAMEWORK={
            "UNAUTHENTICATED_USER": None,
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        },
    ):
        yield limiter
    django_integration._request_limiter.cache_clear()


def serve(*throttles: Any, **attributes: Any) -> None:
    view: Any = type("View", (Basic,), {"throttle_classes": list(throttles), **attributes})
    urlpatterns[:] = [path("items/<int:id>", view.as_view()), path("other", view.as_view())]
    django.urls.clear_url_caches()


def get(at: str = "/other", **headers: str) -> Any:
    client = APIClient(raise_request_exception=False)
    return client.get(at, headers={name.replace("_", "-"): value for name, value in headers.items()})


def statuses(count: int, at: str = "/other", **headers: str) -> list[int]:
    return [get(at, **headers).status_code for _ in range(count)]


def test_allowed_then_denied_with_headers(limiter: Limiter) -> None:
    serve(throttle("small", key=ALL))
    answers = [get() for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["RateLimit"] == '"small";r=1;t=3600'
    assert answers[2].headers["RateLimit-Policy"] == '"small";q=2;w=3600'
    assert answers[2].headers["Retry-After"] == "3600"
    assert "Request was throttled" in answers[2].json()["detail"]


def test_two_throttles_that_deny_name_one_wait(limiter: Limiter) -> None:
    limiter.replace_plans([Plan("minute", "1/minute"), Plan("day", "1/day")])
    serve(throttle("minute", key=ALL, legacy_headers=True), throttle("day", key=ALL, legacy_headers=True))
    first, denied = get(), get()
    assert (first.status_code, denied.status_code) == (200, 429)
    assert 86_000 < int(denied.headers["Retry-After"]) <= 86_400, "the longest wait, as one number"
    assert denied.headers["RateLimit-Policy"] == '"minute";q=1;w=60, "day";q=1;w=86400'
    assert [first.headers[f"X-RateLimit-{name}"] for name in ("Limit", "Remaining")] == ["1", "0"]
    assert int(denied.headers["X-RateLimit-Reset"]) - time.time() > 86_000


def test_a_class_of_ones_own(limiter: Limiter) -> None:
    class Mine(RateThrottle):
        plans = "2/hour"
        key = header("X-User", default="anonymous")
        options = {"legacy_headers": True}  # noqa: RUF012  # as the framework's own throttles are written

    serve(Mine)
    assert statuses(3, X_User="ada") == [200, 200, 429]
    assert get(X_User="bob").headers["X-RateLimit-Remaining"] == "1"


def test_the_plan_the_key_and_exemptions_depend_on_the_request(limiter: Limiter) -> None:
    def tier(request: Any) -> str | None:
        return {"gold": "large", "staff": None}.get(request.headers.get("X-Tier", ""), "small")

    serve(throttle(tier, key=ALL, exempt=lambda request: "X-Free" in request.headers))
    assert statuses(3) == [200, 200, 429]
    assert statuses(6, X_Tier="gold") == [200] * 5 + [429]
    assert statuses(3, X_Tier="staff") == [200] * 3
    assert statuses(3, X_Free="yes") == [200] * 3
    assert limiter.exempt_calls == {"tier": 6}


def test_routes_and_methods(limiter: Limiter) -> None:
    serve(throttle("small", key=route()))
    assert [get(f"/items/{number}").status_code for number in range(3)] == [200, 200, 429]
    assert statuses(1) == [200]
    serve(throttle("small", key=method()))
    assert statuses(3) == [200, 200, 429]


def test_scopes(limiter: Limiter) -> None:
    class Scoped(ScopedThrottle):
        key = ALL

    serve(Scoped, throttle_scope="small")
    assert statuses(3) == [200, 200, 429]
    serve(Scoped)
    assert statuses(3) == [200] * 3


def test_without_blocking_the_decision_is_on_the_request(limiter: Limiter) -> None:
    serve(throttle("small", key=ALL, block=False))
    answers = [get(X_Decision="yes") for _ in range(3)]
    assert ["allowed=True" in answer.json() for answer in answers] == [True, True, False]


def test_a_missing_key_is_the_callers_error(limiter: Limiter) -> None:
    serve(throttle("small", key=header("X-User")))
    answer = get()
    assert answer.status_code == 400
    assert "X-User" in answer.json()["detail"]
    serve(throttle("small", key=principal(default="anonymous")))
    assert statuses(1) == [200]


def test_only_failures_are_charged(limiter: Limiter) -> None:
    serve(throttle("small", key=ALL, charge_when=lambda response: response.status_code in (401, 403)))
    assert statuses(4) == [200] * 4
    assert statuses(3, X_Status="401") == [403, 403, 429]


def test_tokens_streams_and_errors(limiter: Limiter) -> None:
    serve(throttle("tokens", key=ALL, cost=5, cost_of_response=lambda response: int(response.headers["x-tokens"])))
    get(X_Tokens="40")
    assert limiter.peek("all", "tokens").remaining == 60
    assert b"".join(get(X_Tokens="20", X_Stream="yes")) == b"one two"
    assert limiter.peek("all", "tokens").remaining == 40
    left = get(X_Tokens="30", X_Stream="yes")
    next(iter(left.streaming_content))
    left.close()
    assert limiter.peek("all", "tokens").remaining == 10
    seen: list[int] = []

    def never(response: Any) -> bool:
        seen.append(response.status_code)
        return False

    serve(throttle("small", key=ALL, charge_when=never))
    assert statuses(3, X_Status="500") == [500] * 3
    assert seen == [500] * 3


def test_what_one_throttle_reserved_is_given_back_if_another_denies(limiter: Limiter) -> None:
    serve(throttle("large", key=ALL, charge_when=lambda response: True), throttle("small", key=ALL))
    assert statuses(4) == [200, 200, 429, 429]
    assert limiter.peek("all", "large").remaining == 3


def test_default_limits_leave_throttled_views_alone(limiter: Limiter) -> None:
    serve(throttle("large", key=ALL))
    with override_settings(
        MIDDLEWARE=["paceline.integrations.django.RateLimitMiddleware"],
        PACELINE_DEFAULTS=[Limit("small", key=ALL)],
    ):
        assert statuses(3) == [200] * 3
    assert limiter.peek("all", "small").remaining == 2


def test_an_error_in_the_view_is_charged_as_any_other_request(limiter: Limiter) -> None:
    serve(throttle("small", key=ALL))
    assert statuses(3, X_Status="500") == [500, 500, 429]


def with_64_clients(**headers: str) -> Counter[int]:
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.extend(statuses(1, **headers))) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(answers)


def test_exact_with_64_clients(limiter: Limiter) -> None:
    serve(throttle(["large", "tokens"], key=ALL))
    assert with_64_clients() == {200: 5, 429: 59}
    assert limiter.peek("all", "tokens").remaining == 95


def test_exact_with_64_clients_by_response(limiter: Limiter) -> None:
    serve(throttle("tokens", key=ALL, charge_when=lambda response: response.status_code == 403))
    assert with_64_clients() == {200: 64}
    assert limiter.peek("all", "tokens").remaining == 100
    assert with_64_clients(X_Status="401") == {403: 64}
    assert limiter.peek("all", "tokens").remaining == 36


def test_what_cannot_be_used(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="EXCEPTION_HANDLER"):
        throttle("small", key=ALL, on_denied=lambda request, decision: None)
    with pytest.raises(ConfigurationError, match="needs plans"):
        RateThrottle().allow_request(None, None)
