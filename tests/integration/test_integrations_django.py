"""Django: middleware and decorator, for sync and async views. The process has one Django, so it is set up once."""

# Django publishes no types.
# mypy: allow-subclassing-any, allow-untyped-decorators

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any
from weakref import ref

import django
import pytest
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.urls import path as route
from django.utils.decorators import method_decorator
from django.views import View

if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", ROOT_URLCONF=__name__)
    django.setup()

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan
from paceline.errors import ConfigurationError
from paceline.integrations import django as integration
from paceline.integrations.django import (
    PathRule,
    RateLimitMiddleware,
    client_address,
    everyone,
    header,
    principal,
    rate_limit,
)

PLANS = [Plan("small", FixedWindow(limit=1, window="PT1H")), Plan("large", FixedWindow(limit=5, window="P1D"))]
urlpatterns: list[Any] = [route("", lambda request: HttpResponse("hello"))]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with use(PACELINE_LIMITER=Limiter(plans=PLANS)):
        yield
    integration._request_limiter.cache_clear()


def use(**values: Any) -> Any:
    integration._request_limiter.cache_clear()
    return override_settings(**values)


def get(path: str = "/", **headers: str) -> HttpRequest:
    return RequestFactory().get(path, headers=headers)


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


async def hello_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def test_stacked_decorators_are_one_atomic_chain() -> None:
    view = rate_limit("small", key=header("X-API-Key"))(rate_limit("large", key=client_address())(hello))
    key = {"X-API-Key": "ada"}
    assert view(get(**key)).headers["RateLimit"] == '"small";r=0;t=3600, "large";r=4;t=86400'
    denied = view(get(**key))
    assert denied.status_code == 429
    assert denied.headers["Content-Type"] == "application/problem+json"
    assert denied.headers["RateLimit"] == '"small";r=0;t=3600, "large";r=4;t=86400'
    assert denied.headers["Retry-After"] == "3600"
    assert view(get()).status_code == 400


def signed_in(view: Callable[..., Any]) -> Callable[..., Any]:
    """Somebody else's decorator, of the usual kind."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return view(request, *args, **kwargs) if "X-API-Key" in request.headers else HttpResponse("who?", status=401)

    @wraps(view)
    async def checked_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        answer = checked(request, *args, **kwargs)
        return await answer if isawaitable(answer) else answer

    return checked_async if iscoroutinefunction(view) else checked


def large(name: str) -> Any:
    return rate_limit("large", key=everyone(name))


@pytest.mark.parametrize("view", [hello, hello_async])
async def test_a_decorator_between_two_limits_stays(view: Callable[..., Any]) -> None:
    limited = large("all")(signed_in(rate_limit("small", key=everyone("all"))(view)))

    async def ask(**headers: str) -> HttpResponse:
        answer = limited(get(**headers))
        return await answer if isawaitable(answer) else answer

    stranger = await ask()
    assert (stranger.status_code, stranger.content) == (401, b"who?")
    assert stranger.headers["RateLimit"] == '"large";r=4;t=86400'
    known = await ask(**{"X-API-Key": "ada"})
    assert known.content == b"hello"
    assert known.headers["RateLimit"] == '"small";r=0;t=3600, "large";r=3;t=86400'
    assert (await ask(**{"X-API-Key": "ada"})).status_code == 429
    assert (await ask()).status_code == 401


def test_what_marked_a_view_between_two_limits_is_seen() -> None:
    def for_everybody(view: Any) -> Any:  # as Django's login_not_required does it
        view.login_required = False
        return view

    view = large("all")(for_everybody(rate_limit("small", key=everyone("all"))(hello)))
    assert view.login_required is False
    assert view(get()).headers["RateLimit"] == '"large";r=4;t=86400, "small";r=0;t=3600'


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_async_views_work(kind: Any) -> None:
    with use(PACELINE_LIMITER=kind(plans=PLANS)):
        view = rate_limit("small", key=everyone("all"))(hello_async)
        request = AsyncRequestFactory().get("/")
        assert (await view(request)).status_code == 200
        assert (await view(request)).status_code == 429


def test_a_class_of_views_is_limited() -> None:
    @method_decorator(rate_limit("small", key=everyone("all")), name="dispatch")
    class Hello(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    view = Hello.as_view()
    assert [view(get()).status_code for _ in range(2)] == [200, 429]


def test_a_class_may_be_limited_twice() -> None:
    @method_decorator(large("outer"), name="dispatch")
    @method_decorator(rate_limit("small", key=everyone("inner")), name="dispatch")
    class Hello(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    view = Hello.as_view()
    first = view(get())
    assert first.content == b"hello"
    assert first.headers["RateLimit"] == '"small";r=0;t=3600, "large";r=4;t=86400'
    denied = view(get())
    assert denied.status_code == 429
    assert denied.headers["RateLimit"] == '"small";r=0;t=3600, "large";r=3;t=86400'


def test_a_list_of_decorators_of_a_class_is_one_atomic_chain() -> None:
    @method_decorator([large("all"), rate_limit("small", key=everyone("all"))], name="dispatch")
    class Hello(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    view = Hello.as_view()
    assert [view(get()).headers["RateLimit"] for _ in range(2)] == ['"large";r=4;t=86400, "small";r=0;t=3600'] * 2


def test_a_limited_class_may_be_limited_further_by_a_subclass() -> None:
    @method_decorator(large("base"), name="dispatch")
    class Base(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    @method_decorator(signed_in, name="dispatch")
    @method_decorator(rate_limit("small", key=everyone("sub")), name="dispatch")
    class Sub(Base):
        pass

    key = {"X-API-Key": "ada"}
    assert Base.as_view()(get()).headers["RateLimit"] == '"large";r=4;t=86400'
    assert Sub.as_view()(get()).status_code == 401
    assert Sub.as_view()(get(**key)).headers["RateLimit"] == '"large";r=3;t=86400, "small";r=0;t=3600'
    assert Sub.as_view()(get(**key)).status_code == 429
    assert Base.as_view()(get()).headers["RateLimit"] == '"large";r=2;t=86400'


def test_a_method_may_be_limited_twice() -> None:
    class Hello(View):
        @method_decorator(large("outer"))
        @method_decorator(rate_limit("small", key=everyone("inner")))
        def get(self, request: HttpRequest, name: str) -> HttpResponse:
            return HttpResponse(f"hello {name}")

    view = Hello.as_view()
    first = view(get(), name="ada")
    assert first.content == b"hello ada"
    assert first.headers["RateLimit"] == '"small";r=0;t=3600, "large";r=4;t=86400'
    assert view(get(), name="ada").status_code == 429


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_classes_of_async_views_are_limited_alike(kind: Any) -> None:
    @method_decorator(large("sub"), name="dispatch")
    @method_decorator(large("base"), name="dispatch")
    class Hello(View):
        @method_decorator(large("outer"))
        @method_decorator(large("inner"))
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    with use(PACELINE_LIMITER=kind(plans=PLANS)):
        view = rate_limit("small", key=everyone("all"))(Hello.as_view())
        first = await view(AsyncRequestFactory().get("/"))
        assert first.content == b"hello"
        assert first.headers["RateLimit"] == '"large";r=4;t=86400, "small";r=0;t=3600'
        assert (await view(AsyncRequestFactory().get("/"))).status_code == 429


def test_nothing_of_a_request_is_left_to_the_garbage_collector() -> None:
    @method_decorator([large("all"), rate_limit("small", key=everyone("all"))], name="dispatch")
    class Hello(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

        head = get  # else Django makes one out of `get`, and with it a cycle of its own

    request = get()
    seen = ref(request)
    gc.disable()
    try:
        assert Hello.as_view()(request).status_code == 200
        del request
        assert seen() is None
    finally:
        gc.enable()


def test_the_middleware_limits_by_rules() -> None:
    with use(PACELINE_LIMITER=Limiter(plans=PLANS), PACELINE_RULES=[PathRule("/a/*", "small", key=client_address())]):
        middleware = RateLimitMiddleware(rate_limit("large", key=everyone("all"))(hello))
        assert middleware(get("/b")).headers["RateLimit"] == '"large";r=4;t=86400'
        assert middleware(get("/a/b")).headers["RateLimit"] == '"large";r=3;t=86400, "small";r=0;t=3600'
        assert middleware(get("/a/b")).status_code == 429


async def test_the_middleware_is_async_before_async_views() -> None:
    with use(PACELINE_LIMITER=AsyncLimiter(plans=PLANS), PACELINE_RULES=[PathRule("/a", "small", key=principal())]):
        middleware = RateLimitMiddleware(hello_async)

        async def ask(user: Any) -> int:
            request = AsyncRequestFactory().get("/a")

            async def auser() -> Any:
                return user

            request.auser = auser
            return int((await middleware(request)).status_code)

        ada = SimpleNamespace(is_authenticated=True, pk=7)
        assert [await ask(ada) for _ in range(2)] == [200, 429]
        assert await ask(SimpleNamespace(is_authenticated=True, pk=8)) == 200
        assert await ask(SimpleNamespace(is_authenticated=False, pk=None)) == 400


def test_the_principal_is_the_authenticated_user() -> None:
    view = rate_limit("small", key=principal())(hello)

    def ask(**user: Any) -> int:
        request = get()
        request.user = SimpleNamespace(**user)
        return int(view(request).status_code)

    assert [ask(is_authenticated=True, pk=7) for _ in range(2)] == [200, 429]
    assert ask(is_authenticated=True, pk=8) == 200
    assert ask(is_authenticated=False, pk=None) == 400
    assert view(get()).status_code == 400


def test_the_limiter_may_be_named() -> None:
    with use(PACELINE_LIMITER=f"{__name__}.named", PACELINE_PARTITION_KEYS=True):
        view = rate_limit("small", key=everyone("all"))(hello)
        assert view(get()).headers["RateLimit"].startswith('"small";r=0;t=3600;pk=:')


named = Limiter(plans=PLANS)


def test_an_async_limiter_for_sync_views_is_a_mistake() -> None:
    with use(PACELINE_LIMITER=AsyncLimiter(plans=PLANS)), pytest.raises(ConfigurationError, match="Limiter"):
        rate_limit("small", key=everyone("all"))(hello)(get())
