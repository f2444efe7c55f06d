"""A limit by a plan that does not exist is refused when the application is made, not on each of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask

from paceline import AsyncLimiter, FixedWindow, Limiter, Plan
from paceline.errors import ConfigurationError
from paceline.integrations import asgi, fastapi, flask, functions
from paceline.integrations.request_limiter import PathRule
from tests.integration.sites import django_integration, override_settings

PLANS = [Plan("gold", FixedWindow(1, "PT1H")), Plan("daily", FixedWindow(5, "P1D"))]
KEY = asgi.everyone("all")


class Registry:
    refresh_every = None

    def load(self) -> dict[str, Plan]:
        return {plan.name: plan for plan in PLANS}


async def application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody calls it")


def django_middleware(limiter: Any, rules: list[PathRule]) -> None:
    django_integration._request_limiter.cache_clear()
    try:
        with override_settings(PACELINE_LIMITER=limiter, PACELINE_RULES=rules):
            django_integration.RateLimitMiddleware(lambda request: None)
    finally:
        django_integration._request_limiter.cache_clear()


def rules(plan: str) -> list[PathRule]:
    return [PathRule("/a", "gold", key=KEY), PathRule("/b", ["daily", plan], key=KEY)]


MADE: dict[str, Callable[[Any, str], object]] = {
    "asgi": lambda limiter, plan: asgi.RateLimitMiddleware(application, limiter, rules(plan)),
    "flask": lambda limiter, plan: flask.install(Flask(__name__), limiter, rules(plan)),
    "django": lambda limiter, plan: django_middleware(limiter, rules(plan)),
    "functions": lambda limiter, plan: functions.rate_limit(limiter, iter(["gold", plan]), key="k"),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_an_unknown_plan_is_refused(made: Callable[[Any, str], object]) -> None:
    limiter = Limiter(plans=PLANS)
    made(limiter, "daily")
    with pytest.raises(ConfigurationError, match="there is no plan 'glod'; the limiter has gold, daily"):
        made(limiter, "glod")


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("limiter", [Limiter(plans=Registry()), Limiter()], ids=["registry", "none yet"])
def test_a_plan_that_may_still_come_is_not(made: Callable[[Any, str], object], limiter: Limiter) -> None:
    made(limiter, "glod")


DECORATORS = [fastapi.rate_limit, flask.rate_limit, django_integration.rate_limit]


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("plans", ["10/minut", "10 per minut", ["gold", "10/minut"], "5/", "10/minute burst"])
def test_a_rate_that_can_not_be_read_is_refused_where_it_is_written(decorator: Any, plans: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^plans: .* is not a rate; write for example 10/minute"):
        decorator(plans, key=KEY)


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("plans", [None, 5, b"gold", ["gold", None]])
def test_what_names_no_plan_is_refused_where_it_is_written(decorator: Any, plans: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^plans: .* is no plan's name"):
        decorator(plans, key=KEY)
    with pytest.raises(ConfigurationError, match=r"^plans: .* is no plan's name"):
        functions.rate_limit(Limiter(), plans, key="k")


def test_a_plan_may_have_a_slash_in_its_name() -> None:
    flask.rate_limit(["api/read", "once per customer"], key=KEY)


@pytest.mark.parametrize("chosen", ["10/minut", ["gold", "10/minut"], 5])
def test_a_bad_choice_of_a_function_is_the_fault_of_the_application(
    chosen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = Flask(__name__)
    flask.install(app, Limiter(plans=PLANS))
    app.get("/")(flask.rate_limit(lambda request: chosen, key=KEY)(lambda: "hello"))
    answer = app.test_client().get("/")
    assert answer.status_code == 500, answer.text
    assert "plans: " in caplog.text


async def hello() -> str:
    return "hello"


def by_decorator(app: FastAPI, plan: str) -> None:
    app.get("/")(fastapi.rate_limit("gold", key=KEY)(fastapi.rate_limit(plan, key=KEY)(hello)))


def by_dependency(app: FastAPI, plan: str) -> None:
    app.get("/", dependencies=[Depends(fastapi.limited(plan, key=KEY))])(hello)


def by_router(app: FastAPI, plan: str) -> None:
    router = APIRouter(dependencies=[Depends(fastapi.limited(plan, key=KEY))])
    router.get("/")(hello)
    app.include_router(router, prefix="/a")


def by_web_socket(app: FastAPI, plan: str) -> None:
    app.websocket("/ws", dependencies=[Depends(fastapi.limited(plan, key=KEY))])(hello)


def by_mount(app: FastAPI, plan: str) -> None:
    child = FastAPI()
    by_decorator(child, plan)
    app.mount("/child", child)
    child.mount("/again", app)  # a circle, which is no reason to go round for ever


def by_mount_in_a_mount(app: FastAPI, plan: str) -> None:
    child = FastAPI()
    by_mount(child, plan)
    app.mount("/child", child)


def by_mount_with_a_limiter(app: FastAPI, plan: str) -> None:
    child = FastAPI()
    fastapi.install(child, Limiter(plans=PLANS))
    by_dependency(child, plan)
    app.mount("/child", child)


LIMITED = [
    by_decorator,
    by_dependency,
    by_router,
    by_web_socket,
    by_mount,
    by_mount_in_a_mount,
    by_mount_with_a_limiter,
]


async def started(app: FastAPI) -> list[dict[str, Any]]:
    """The application's answer to the server's lifespan start-up."""
    events = iter(["startup", "shutdown"])
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, str]:
        return {"type": f"lifespan.{next(events)}"}

    async def send(message: Any) -> None:
        messages.append(message)

    try:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
    except ConfigurationError as error:
        messages.append({"raised": str(error)})
    return messages


@pytest.mark.parametrize("limited", LIMITED)
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
async def test_fastapi_does_not_start_with_a_plan_nobody_has(limited: Any, kind: Any) -> None:
    app = FastAPI()
    fastapi.install(app, kind(plans=PLANS))
    limited(app, "glod")
    problem = "plans: there is no plan 'glod'; the limiter has gold, daily"
    assert await started(app) == [{"type": "lifespan.startup.failed", "message": problem}, {"raised": problem}]


@pytest.mark.parametrize("limited", LIMITED)
async def test_fastapi_starts_with_plans_that_are_there(limited: Any) -> None:
    app = FastAPI()
    fastapi.install(app, AsyncLimiter(plans=PLANS))
    limited(app, "daily")
    assert [message["type"] for message in await started(app)] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


async def test_a_mounted_app_is_asked_for_the_plans_of_its_own_limiter() -> None:
    app, child = FastAPI(), FastAPI()
    fastapi.install(app, AsyncLimiter(plans=[Plan("other", FixedWindow(1, "PT1H"))]))
    fastapi.install(child, AsyncLimiter(plans=PLANS))
    by_decorator(child, "daily")
    app.mount("/child", child)
    assert (await started(app))[0] == {"type": "lifespan.startup.complete"}
