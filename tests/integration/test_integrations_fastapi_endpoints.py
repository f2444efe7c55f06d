"""FastAPI: all that can be an endpoint can be a limited one, and keeps the parameters it declares."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel

from paceline import AsyncLimiter, FixedWindow, LeasePolicy, Limiter, Plan, TokenBucket
from paceline.errors import ConfigurationError
from paceline.integrations.fastapi import client_address, everyone, install, rate_limit
from tests.integration.asgi_calls import statuses, talk_to

if TYPE_CHECKING:
    from nowhere import Receipt  # type: ignore[import-not-found]  # it exists for type checkers only

limit = rate_limit("two", key=everyone("all"))


class Item(BaseModel):
    number: int


async def order(request: Request, item: Item, q: int = 1) -> dict[str, Any]:
    return {"path": request.url.path, "number": item.number, "q": q}


def order_in_a_thread(request: Request, item: Item, q: int = 1) -> dict[str, Any]:
    return {"path": request.url.path, "number": item.number, "q": q}


async def order_for_a_receipt(request: Request, item: Item, q: int = 1) -> Receipt:
    return {"path": request.url.path, "number": item.number, "q": q}


async def order_in_quotes(request: "Request", item: "Item", q: "int" = 1) -> "dict[str, Any]":  # noqa: UP037
    return await order(request, item, q)


class CallableEndpoint:
    async def __call__(self, request: Request, item: Item, q: int = 1) -> dict[str, Any]:
        return await order(request, item, q)


class BlockingDesk:
    def __call__(self, request: Request, item: Item, q: int = 1) -> dict[str, Any]:
        return order_in_a_thread(request, item, q)


def passing_on(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def passed(*args: Any, **kwargs: Any) -> Any:
        return await endpoint(*args, **kwargs)

    return passed


ENDPOINTS: dict[str, Callable[..., Any]] = {
    "function": order,
    "blocking function": order_in_a_thread,
    "unknown return type": order_for_a_receipt,
    "types in quotes": order_in_quotes,
    "wrapped": passing_on(order),
    "object": CallableEndpoint(),
    "blocking object": BlockingDesk(),
    "method": CallableEndpoint().__call__,
    "partial": partial(order, q=1),
    "blocking partial": partial(order_in_a_thread, q=1),
    "partial of an object": partial(CallableEndpoint(), q=1),
    "partial with an unknown return type": partial(order_for_a_receipt, q=1),
    "wrapped partial": passing_on(partial(order, q=1)),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS)
async def test_an_endpoint_of_any_kind_is_limited(endpoint: Callable[..., Any]) -> None:
    app = FastAPI()
    install(app, AsyncLimiter(plans=[Plan("two", FixedWindow(limit=2, window="PT1H"))]))
    app.post("/orders", response_model=None)(limit(endpoint))
    async with talk_to(app) as client:
        answers = [await client.post("/orders", json={"number": 7}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json() == {"path": "/orders", "number": 7, "q": 1}


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS)
def test_what_is_declared_needs_no_module_to_be_understood(endpoint: Callable[..., Any]) -> None:
    """Older releases of FastAPI look for the names of types in the module of the decorator."""
    declared = inspect.signature(limit(endpoint)).parameters
    assert {name: each.annotation for name, each in declared.items()} == {"request": Request, "item": Item, "q": int}


def test_types_that_are_not_known_yet_are_left_to_fastapi() -> None:
    declared = inspect.signature(limit(order_for_a_receipt))
    assert declared.return_annotation == "Receipt"


def test_a_route_has_the_name_it_would_have_without_a_limit() -> None:
    app = FastAPI()
    for endpoint in (order, CallableEndpoint()):
        app.get("/bare")(endpoint)
        app.get("/limited")(limit(endpoint))
        bare, limited = (getattr(route, "name", None) for route in app.routes[-2:])
        assert limited == bare


class Lines:
    def __call__(self) -> Iterator[str]:
        yield "a"


class AsyncLines:
    async def __call__(self) -> AsyncIterator[str]:
        yield "a"


@pytest.mark.parametrize("lines", [Lines(), AsyncLines(), partial(Lines())])
def test_an_object_that_is_called_for_a_generator_is_refused(lines: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="limited"):
        limit(lines)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_with_leases_no_more_is_admitted_than_the_plan_has(
    kind: type[Limiter] | type[AsyncLimiter],
) -> None:
    """A lease keeps its store's denial; the response must be a denial, too."""
    app = FastAPI()
    limiter = kind("memory://", plans=[Plan("p", FixedWindow(limit=20, window="PT1H"))], lease=LeasePolicy())
    install(app, limiter)

    @app.get("/")
    @rate_limit("p", key=client_address())
    async def root() -> None: ...

    async with talk_to(app) as client:
        answers = [await client.get("/") for _ in range(60)]
    assert [answer.status_code for answer in answers].count(200) == 20
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["Retry-After"]) > 3000


async def test_an_endpoint_in_two_apps_is_limited_by_each_ones_limiter() -> None:
    @rate_limit("gold", key=client_address())
    async def endpoint() -> str:
        return "hello"

    first, second = FastAPI(), FastAPI()
    for app in (first, second):
        install(app, AsyncLimiter("memory://", plans=[Plan("gold", FixedWindow(2, "PT1H"))]))
        app.get("/")(endpoint)
    async with talk_to(first) as one, talk_to(second) as other:
        assert await statuses(one, 1) == [200]
        assert await statuses(other, 3) == [200, 200, 429]
        assert await statuses(one, 2) == [200, 429]


async def test_the_next_request_is_decided_by_plans_that_were_replaced() -> None:
    app, limiter = FastAPI(), AsyncLimiter("memory://", plans=[Plan("gold", TokenBucket(10, 1))])
    install(app, limiter)

    @app.get("/")
    @rate_limit("gold", key=client_address())
    async def endpoint() -> str:
        return "hello"

    async with talk_to(app) as client:
        assert await statuses(client, 2) == [200, 200]
        limiter.replace_plans([Plan("gold", TokenBucket(20, 1))])
        assert (await client.get("/")).headers["RateLimit-Policy"] == '"gold";q=20;w=20'
