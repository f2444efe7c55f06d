"""The contract of web integrations, in every framework: plans and exemptions per request, answers of one's own,
charges by response, and all of it exact with many clients at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from paceline import AsyncLimiter, Concurrency, Decision, FixedWindow, Limiter, Plan
from paceline.integrations.limit import Limit, Response
from paceline.limits.keys import composite, everyone, header, method, path, route
from tests.integration.stack_sites import Setup, Site, field
from tests.integration.stacks import STACKS, each_stack

PLANS = [
    Plan("small", FixedWindow(limit=2, window="PT1H")),
    Plan("large", FixedWindow(limit=5, window="PT1H")),
    Plan("tokens", FixedWindow(limit=100, window="P1D")),
    Plan("logins", FixedWindow(limit=3, window="PT1H")),
    Plan("flights", Concurrency(1, expires="PT10M")),
    Plan("flights and more", (Concurrency(1, expires="PT10M"), FixedWindow(limit=3, window="P1D"))),
    Plan("places, but three a day", Concurrency(9, expires="PT10M"), overrides={"all": "3/day"}),
    Plan("many, but one at once", "999/day", overrides={"all": Concurrency(1, expires="PT10M")}),
]
ALL = everyone("all")


class Registry:
    """Plans that an `AsyncLimiter` loads with its first call."""

    refresh_every = None

    def load(self) -> dict[str, Plan]:
        return {plan.name: plan for plan in PLANS}


class Opened:
    """A site and the limiter behind it."""

    def __init__(self, name: str, site: Site, limiter: Limiter | AsyncLimiter) -> None:
        self.name = name
        self.site = site
        self.limiter = limiter

    async def remaining(self, plan: str, key: str = "all") -> int:
        decision = self.limiter.peek(key, plan)
        return (decision if isinstance(decision, Decision) else await decision).remaining


Open: TypeAlias = Callable[..., AbstractAsyncContextManager[Opened]]


@pytest.fixture(params=each_stack(), ids=lambda param: f"{param[0]}-{param[1].__name__}")
def opening(request: pytest.FixtureRequest) -> Open:
    """Opens a site in one framework: `opening(plans, key=…, install={…}, **options)`."""
    name, kind = request.param
    stack, _ = STACKS[name]

    @asynccontextmanager
    async def opened(
        plans: Any = None, *, key: Any = ALL, install: Any = None, known: Any = PLANS, **options: Any
    ) -> AsyncIterator[Opened]:
        limiter = kind(plans=known)
        if name == "asgi" and install is not None and "defaults" in install:
            pytest.skip("the middleware limits by path alone")
        async with stack(Setup(limiter, plans, key, options, install or {})) as site:
            yield Opened(name, site, limiter)

    return opened


# -- per request -------------------------------------------------------------------------------------------------------


async def test_allowed_then_denied_with_headers(opening: Open) -> None:
    async with opening("small") as opened:
        answers = [await opened.site.get("/items/1") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[0].headers["RateLimit"] == '"small";r=1;t=3600'
        assert answers[2].headers["RateLimit-Policy"] == '"small";q=2;w=3600'
        assert answers[2].headers["Content-Type"] == "application/problem+json"
        assert int(answers[2].headers["Retry-After"]) <= 3600
        assert "X-RateLimit-Limit" not in answers[0].headers


async def test_the_plan_depends_on_the_caller(opening: Open) -> None:
    def tier(native: Any) -> Any:
        return {"gold": "large", "two": ["small", "large"], "staff": None}.get(field(native, "X-Tier") or "", "small")

    async with opening(tier) as opened:
        site = opened.site
        assert await site.statuses(3) == [200, 200, 429]
        assert await site.statuses(3, X_Tier="gold") == [200, 200, 200]
        assert await site.statuses(1, X_Tier="two") == [429]
        assert await site.statuses(4, X_Tier="staff") == [200] * 4
        assert await opened.remaining("large") == 2
        assert opened.limiter.exempt_calls == {"tier": 4}


async def test_rate_strings_are_plans(opening: Open) -> None:
    def tier(native: Any) -> str:
        return "1/hour;3/day" if field(native, "X-Tier") == "free" else "2/hour"

    async with opening(tier) as opened:
        assert await opened.site.statuses(3) == [200, 200, 429]
        assert await opened.site.statuses(2, X_Tier="free") == [200, 429]
    async with opening("2/hour") as opened:
        assert await opened.site.statuses(3) == [200, 200, 429]


async def test_exempt_requests_pass_and_are_counted(opening: Open) -> None:
    async with opening("small", exempt=lambda native: field(native, "X-Staff") == "yes") as opened:
        assert await opened.site.statuses(4, X_Staff="yes") == [200] * 4
        assert await opened.remaining("small") == 2
        assert opened.limiter.exempt_calls == {"small": 4}
        assert await opened.site.statuses(3) == [200, 200, 429]


async def test_a_key_function_that_returns_none_does_not_limit(opening: Open) -> None:
    async with opening("small", key=lambda native: field(native, "X-User")) as opened:
        assert await opened.site.statuses(4) == [200] * 4
        assert opened.limiter.exempt_calls == {"small": 4}
        assert await opened.site.statuses(3, X_User="ada") == [200, 200, 429]
        assert await opened.site.statuses(1, X_User="bob") == [200]


async def test_a_missing_header_is_still_an_error(opening: Open) -> None:
    async with opening("small", key=header("X-API-Key")) as opened:
        assert await opened.site.statuses(1) == [400]


async def test_paths_of_a_route_share_a_limit(opening: Open) -> None:
    async with opening("small", key=route()) as opened:
        assert [(await opened.site.get(f"/items/{number}")).status for number in range(3)] == [200, 200, 429]
        assert await opened.site.statuses(1, "/other") == [200]


async def test_paths_have_limits_of_their_own(opening: Open) -> None:
    async with opening("small", key=composite(path(), method())) as opened:
        assert [(await opened.site.get(f"/items/{number}")).status for number in range(3)] == [200] * 3
        assert await opened.site.statuses(3, "/items/1") == [200, 429, 429]


async def test_default_limits_with_overrides_and_exemptions(opening: Open) -> None:
    async with opening(install={"defaults": [Limit("small", key=ALL)]}) as opened:
        assert await opened.site.statuses(3, "/plain") == [200, 200, 429]
        assert await opened.site.statuses(3, "/free") == [200] * 3
        assert await opened.site.statuses(1, "/items/1") == [429]
        if opened.name != "litestar":  # which resolves the route before any middleware
            assert await opened.site.statuses(1, "/nowhere") == [429]


async def test_a_limit_of_its_own_replaces_the_defaults(opening: Open) -> None:
    async with opening("large", install={"defaults": [Limit("small", key=ALL)]}) as opened:
        assert await opened.site.statuses(6, "/items/1") == [200] * 5 + [429]
        assert await opened.remaining("small") == 2
        assert await opened.site.statuses(3, "/plain") == [200, 200, 429]


async def test_a_rate_belongs_to_its_route(opening: Open) -> None:
    plans: list[str] = []
    async with opening("2/hour", on_denied=lambda native, decision: plans.append(decision.plan)) as opened:
        assert await opened.site.statuses(3, "/items/1") == [200, 200, 429]
        assert await opened.site.statuses(3, "/decision") == [200, 200, 429]
        assert plans == ["2/hour", "2/hour"]
        denied = await opened.site.get("/decision")
        assert denied.headers["RateLimit-Policy"] == '"2/hour";q=2;w=3600'
        assert json.loads(denied.text)["violated-policies"] == ["2/hour"]


@pytest.mark.parametrize("options", [{"shared": True}, {"scope": "reading"}], ids=str)
async def test_a_shared_rate_counts_for_all_routes(opening: Open, options: Any) -> None:
    async with opening("2/hour", **options) as opened:
        assert await opened.site.statuses(1, "/items/1") == [200]
        assert await opened.site.statuses(2, "/decision") == [200, 429]
        assert await opened.remaining("2/hour@reading" if "scope" in options else "2/hour") == 0


async def test_a_plan_with_a_name_counts_for_all_routes(opening: Open) -> None:
    async with opening("small") as opened:
        assert await opened.site.statuses(1, "/items/1") == [200]
        assert await opened.site.statuses(2, "/decision") == [200, 429]


async def test_rates_that_a_function_chooses_belong_to_their_route(opening: Open) -> None:
    async with opening(lambda native: ["2/hour"]) as opened:
        assert await opened.site.statuses(3, "/items/1") == [200, 200, 429]
        assert await opened.site.statuses(3, "/decision") == [200, 200, 429]


async def test_a_rate_of_the_defaults_counts_for_each_route(opening: Open) -> None:
    async with opening(install={"defaults": [Limit("2/hour", key=ALL)]}) as opened:
        assert await opened.site.statuses(3, "/items/1") == [200, 200, 429]
        assert await opened.site.statuses(3, "/plain") == [200, 200, 429]


async def test_a_limit_of_a_route_can_hold_besides_the_defaults(opening: Open) -> None:
    install = {"defaults": [Limit("small", key=ALL)]}
    async with opening("large", install=install, override_defaults=False) as opened:
        assert await opened.site.statuses(3, "/items/1") == [200, 200, 429]
        assert await opened.remaining("small") == 0


async def test_a_limit_of_the_whole_application_is_replaced_by_no_route(opening: Open) -> None:
    """As the `application_limits` of flask-limiter."""
    install = {"defaults": [Limit("4/hour", key=ALL, shared=True, override_defaults=False), Limit("3/hour", key=ALL)]}
    async with opening("2/hour", install=install) as opened:
        assert await opened.site.statuses(1, "/items/1") == [200]
        assert await opened.site.statuses(1, "/decision") == [200]
        assert await opened.site.statuses(3, "/plain") == [200, 200, 429]
        assert await opened.site.statuses(1, "/items/1") == [429]
        assert await opened.site.statuses(3, "/free") == [200] * 3


# -- answers of one's own ----------------------------------------------------------------------------------------------


async def test_on_denied_makes_the_response(opening: Open) -> None:
    asked: list[Any] = []

    def sorry(native: Any, decision: Decision) -> Any:
        asked.append((field(native, "X-User"), decision.plan))
        return {"sorry": decision.plan}

    async with opening("small", on_denied=sorry) as opened:
        await opened.site.statuses(2)
        denied = await opened.site.get("/items/1", X_User="ada")
    assert denied.status == 429
    assert denied.headers["Content-Type"].startswith("application/json")
    assert denied.text.replace(" ", "").strip() == '{"sorry":"small"}'
    assert "Retry-After" in denied.headers
    assert "RateLimit" in denied.headers
    assert asked == [("ada", "small")]


async def test_on_denied_of_the_application_and_none(opening: Open) -> None:
    async with opening("small", install={"on_denied": lambda native, decision: "calm down"}) as opened:
        await opened.site.statuses(2)
        denied = await opened.site.get("/items/1")
        assert (denied.status, denied.text) == (429, "calm down")
    async with opening("small", install={"on_denied": lambda native, decision: None}) as opened:
        await opened.site.statuses(2)
        denied = await opened.site.get("/items/1")
        assert denied.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("where", ["limit", "install"])
async def test_legacy_headers(opening: Open, where: str) -> None:
    options: Any = {"legacy_headers": True} if where == "limit" else {"install": {"legacy_headers": True}}
    async with opening("small", **options) as opened:
        before = time.time()
        answers = [await opened.site.get("/items/1") for _ in range(3)]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert {answer.headers["X-RateLimit-Limit"] for answer in answers} == {"2"}
    assert 0 <= int(answers[2].headers["X-RateLimit-Reset"]) - before <= 3602


async def test_several_limits_answer_with_one_of_each_field(opening: Open) -> None:
    """A place and a quota are decided one after the other. A client reads one `X-RateLimit-*` of them: the tightest."""
    async with opening(["flights", "small"], install={"legacy_headers": True}) as opened:
        answers = [await opened.site.get("/items/1") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    for answer, limit in zip(answers, ("1", "2", "2"), strict=True):
        fields = [(name.lower(), value) for name, value in answer.headers.items()]
        assert [value for name, value in fields if name == "x-ratelimit-limit"] == [limit]
        assert [value for name, value in fields if name == "x-ratelimit-remaining"] == ["0"]
        assert len([value for name, value in fields if name == "x-ratelimit-reset"]) == 1
    assert answers[0].headers["RateLimit-Policy"] == '"flights";q=1;qu="concurrent-requests", "small";q=2;w=3600'


async def test_a_cost_above_the_limit_of_a_key_is_a_denial(opening: Open) -> None:
    plans = [Plan("uploads", "10/hour", overrides={"trial": "3/hour"})]
    async with opening("uploads", key=header("X-Key"), cost=5, known=plans) as opened:
        denied = await opened.site.get("/items/1", X_Key="trial")
        assert (denied.status, denied.headers.get("Retry-After")) == (429, None)
        assert json.loads(denied.text)["reason"] == "EXCEEDS_CAPACITY"
        assert await opened.site.statuses(3, X_Key="other") == [200, 200, 429]


async def test_without_blocking_the_decision_is_on_the_request(opening: Open) -> None:
    async with opening("small", block=False) as opened:
        answers = [await opened.site.get("/decision") for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert ["allowed=True" in answer.text for answer in answers] == [True, True, False]
    assert "plan='small'" in answers[2].text


# -- charges by response -----------------------------------------------------------------------------------------------


def failed(response: Response) -> bool:
    return response.status_code == 401


def tokens(response: Response) -> int:
    return int(response.headers["x-tokens"])


async def test_only_failures_are_charged(opening: Open) -> None:
    async with opening("logins", charge_when=failed) as opened:
        assert await opened.site.statuses(5) == [200] * 5
        assert await opened.remaining("logins") == 3
        assert await opened.site.statuses(4, X_Status="401") == [401, 401, 401, 429]
        assert await opened.site.statuses(1) == [429]


async def test_the_cost_is_what_the_response_says(opening: Open) -> None:
    async with opening("tokens", cost=10, cost_of_response=tokens) as opened:
        assert (await opened.site.get("/items/1", X_Tokens="60")).status == 200
        assert await opened.remaining("tokens") == 40
        assert (await opened.site.get("/items/1", X_Tokens="3")).status == 200
        assert await opened.remaining("tokens") == 37
        assert (await opened.site.get("/items/1", X_Tokens="0")).status == 200
        assert await opened.remaining("tokens") == 37


async def test_a_function_of_request_and_response(opening: Open) -> None:
    def asked(native: Any, response: Response) -> bool:
        return field(native, "X-Charge") == "yes"

    async with opening("large", charge_when=asked) as opened:
        await opened.site.statuses(3)
        assert await opened.remaining("large") == 5
        await opened.site.statuses(3, X_Charge="yes")
        assert await opened.remaining("large") == 2


async def test_a_stream_is_charged_when_it_ends(opening: Open) -> None:
    async with opening("tokens", cost_of_response=tokens) as opened:
        answer = await opened.site.get("/stream", X_Tokens="30")
        assert (answer.status, answer.text) == (200, "one two three")
        assert await opened.remaining("tokens") == 70


async def test_a_client_who_leaves_a_stream_is_charged(opening: Open) -> None:
    cut: list[bool] = []

    def cost(response: Response) -> int:
        cut.append(response.completed)
        return tokens(response)

    async with opening("tokens", cost=50, cost_of_response=cost) as opened:
        if opened.site.leave is None:
            pytest.skip("can't leave here")
        await opened.site.leave("/stream")
        assert await opened.remaining("tokens") == 93
        assert cut == [False]


async def test_a_cancelled_request_stays_charged(opening: Open) -> None:
    async with opening("tokens", cost=50, cost_of_response=tokens) as opened:
        if opened.site.cancel is None:
            pytest.skip("nobody can cancel a thread")
        await opened.site.cancel("/wait")
        assert await opened.remaining("tokens") == 50


async def test_an_error_in_the_handler_is_a_500(opening: Open) -> None:
    seen: list[int] = []

    def charged(response: Response) -> bool:
        seen.append(response.status_code)
        return False

    async with opening("small", charge_when=charged) as opened:
        assert await opened.site.statuses(3, "/error") == [500] * 3
        assert seen == [500] * 3
        assert await opened.remaining("small") == 2


async def test_an_error_in_the_handler_is_charged_as_any_other_request(opening: Open) -> None:
    async with opening("small") as opened:
        assert await opened.site.statuses(3, "/error") == [500, 500, 429]


async def test_a_wrong_charge_function_breaks_no_response(opening: Open, caplog: pytest.LogCaptureFixture) -> None:
    def wrong(response: Response) -> int:
        raise KeyError("x-missing")

    async with opening("tokens", cost=7, cost_of_response=wrong) as opened:
        assert (await opened.site.get("/items/1")).status == 200
        assert await opened.remaining("tokens") == 93
    assert "stays at 7" in caplog.text


# -- in flight ---------------------------------------------------------------------------------------------------------


async def test_a_concurrency_limit_holds_while_a_request_is_in_flight(opening: Open) -> None:
    async with opening(["flights", "large"]) as opened:
        assert await opened.site.statuses(3) == [200] * 3
        assert await opened.site.statuses(1, "/error") == [500]
        assert (await opened.site.get("/stream")).text == "one two three"
        assert await opened.remaining("flights") == 1
        assert await opened.remaining("large") == 0
        assert await opened.site.statuses(1) == [429]
        assert await opened.remaining("flights") == 1
    async with opening("flights") as opened:
        if opened.site.leave is not None:
            await opened.site.leave("/stream")
            assert await opened.remaining("flights") == 1
        if opened.site.cancel is not None:
            await opened.site.cancel("/wait")
            assert await opened.remaining("flights") == 1


async def test_the_first_request_gives_its_place_back(opening: Open) -> None:
    async with opening("flights", known=Registry()) as opened:
        assert await opened.site.statuses(3) == [200] * 3
        assert await opened.remaining("flights") == 1
    async with opening(install={"defaults": [Limit("flights", key=ALL)]}, known=Registry()) as opened:
        assert await opened.site.statuses(3) == [200] * 3
        assert await opened.remaining("flights") == 1


async def test_an_override_may_be_of_another_kind_than_its_plan(opening: Open) -> None:
    async with opening("places, but three a day") as opened:
        assert await opened.site.statuses(4) == [200, 200, 200, 429]
    async with opening("many, but one at once") as opened:
        assert await opened.site.statuses(3) == [200] * 3
        assert await opened.remaining("many, but one at once") == 1


async def test_the_other_limits_of_a_concurrency_plan_stay_charged(opening: Open) -> None:
    async with opening("flights and more") as opened:
        assert await opened.site.statuses(4) == [200, 200, 200, 429]
    async with opening(["flights and more", "small"]) as opened:
        assert await opened.site.statuses(4) == [200, 200, 429, 429]
        assert await opened.site.statuses(1, X_Nothing="x") == [429]
        limiter: Any = opened.limiter
        decision = limiter.peek("all", "flights and more")
        states = (decision if isinstance(decision, Decision) else await decision).states
        assert [state.remaining for state in states] == [1, 1], "a denial by another plan charges nothing"


# -- many clients ------------------------------------------------------------------------------------------------------


async def test_exact_with_64_clients(opening: Open) -> None:
    async with opening(["large", "tokens"]) as opened:
        answers = await asyncio.gather(*(opened.site.get(f"/items/{number}") for number in range(64)))
        assert Counter(answer.status for answer in answers) == {200: 5, 429: 59}
        assert await opened.remaining("tokens") == 95


async def test_exact_with_64_clients_by_response(opening: Open) -> None:
    async with opening("tokens", charge_when=failed) as opened:
        answers = await asyncio.gather(
            *(opened.site.get("/items/1", X_Status="401" if number % 2 else "200") for number in range(64))
        )
        assert Counter(answer.status for answer in answers) == {200: 32, 401: 32}
        assert await opened.remaining("tokens") == 68
