"""`paceline plans lint`: the limits of a web application, without a request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from paceline.server.cli import main

PLANS = """
from paceline import *
plans = [Plan("gold", FixedWindow(5, "PT1M")), Plan("free", FixedWindow(1, "PT1M"))]
limiter = Limiter(plans=plans)
"""
FASTAPI = """
from fastapi import APIRouter, Depends, FastAPI
from paceline.integrations.fastapi import *
app = FastAPI()
install(app, limiter, defaults=[Limit("free", key=client_address())])
def tier(request): return "gold"
@app.get("/items/{id}")
@rate_limit("gold", key=header("X-API-Key"))
@rate_limit(tier, key=route())
async def items(id: int): ...
router = APIRouter(prefix="/v1", dependencies=[Depends(limited("10/minute", key=principal()))])
@router.post("/orders")
async def orders(): ...
app.include_router(router)
@app.get("/pages")
async def pages(): ...
@app.get("/health")
@exempt
async def health(): ...
"""
SHOWN = [
    "GET\t/items/{id}\tgold\tX-API-Key\troute",
    "GET\t/items/{id}\ttier()\troute\troute",
    "POST\t/v1/orders\t10/minute\tprincipal\troute",
    "GET\t/pages\tfree\tclient address\tdefault",
    "GET\t/health\t-\t-\texempt",
]

Lint = Callable[..., tuple[int, str]]


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lint]:
    """Lints the application of a source; the exit status, and what was written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(source: str, *options: str, name: str = "linted:app") -> tuple[int, str]:
        (tmp_path / "linted.py").write_text(PLANS + dedent(source))
        sys.modules.pop("linted", None)
        with pytest.raises(SystemExit) as ended:
            main(["plans", "lint", name, *options])
        written = capsys.readouterr()
        return int(ended.value.code or 0), written.out + written.err

    yield run
    sys.modules.pop("linted", None)


def test_routes_plans_and_keys_are_listed(lint: Lint) -> None:
    status, written = lint(FASTAPI)
    assert written.splitlines() == ["method\troute\tplans\tkey\tfrom", *sorted(SHOWN, key=lambda line: line.split()[1])]
    assert status == 0


def test_the_same_for_machines(lint: Lint) -> None:
    status, written = lint(FASTAPI, "--json")
    found = json.loads(written)
    assert status == 0
    assert found["routes"][-1] == {
        "path": "/v1/orders",
        "methods": ["POST"],
        "exempt": False,
        "limits": [{"plans": ["10/minute"], "key": "principal", "from": "route"}],
    }
    assert (found["unmatchedRules"], found["unknownPlans"], found["unlimitedRoutes"]) == ([], [], [])


def test_rules_that_match_nothing_and_unknown_plans_are_errors(lint: Lint) -> None:
    source = """
    from starlette.applications import Starlette
    from starlette.routing import Mount, Route
    from paceline.integrations.asgi import *
    from paceline.integrations.starlette import install, rate_limit
    @rate_limit("glod", key=everyone("all"))
    async def hello(request): ...
    async def open(request): ...
    inner = Starlette(routes=[Mount("/shop", routes=[Route("/a", hello), Route("/b", open)])])
    install(inner, limiter)
    app = RateLimitMiddleware(inner, limiter, [
        PathRule("/shop/a", "gold", key=client_address()), PathRule("/shops/*", "gold", key=client_address())])
    """
    status, written = lint(source)
    assert status == 1
    lines = written.splitlines()
    assert "GET\t/shop/a\tglod\teveryone\troute" in lines
    assert "GET\t/shop/a\tgold\tclient address\trule" in lines
    assert "error: PathRule('/shops/*', 'gold') matches no route, so it limits nothing" in lines
    assert "error: there is no plan 'glod'; the limiter has gold, free" in lines
    assert "note: /shop/b has no limit" in lines


def test_strict_wants_a_limit_on_every_route(lint: Lint) -> None:
    source = """
    from flask import Flask
    from paceline.integrations.flask import *
    app = Flask(__name__, static_folder=None)
    install(app, limiter, rules=[PathRule("/api/*", "gold", key=client_address())])
    app.add_url_rule("/api/<int:id>", "api", lambda id: "")
    app.add_url_rule("/own", "own", rate_limit("free", key=path())(lambda: ""))
    app.add_url_rule("/open", "open", lambda: "")
    """
    status, written = lint(source)
    assert status == 0
    assert written.splitlines()[1:] == [
        "GET\t/api/<int:id>\tgold\tclient address\trule",
        "GET\t/open\t-\t-\t-",
        "GET\t/own\tfree\tpath\troute",
        "note: /open has no limit",
    ]
    status, written = lint(source, "--strict")
    assert (status, written.splitlines()[-1]) == (1, "error: /open has no limit")


OTHERS = {
    "quart": """
    from quart import Quart
    from paceline.integrations.quart import *
    app = Quart(__name__, static_folder=None)
    install(app, limiter, defaults=[Limit("free", key=client_address())])
    @app.get("/own")
    @rate_limit("gold", key=path())
    async def own(): ...
    @app.get("/default")
    async def default(): ...
    @app.get("/free")
    @exempt
    async def free(): ...
    """,
    "aiohttp": """
    from aiohttp import web
    from paceline.integrations.aiohttp import *
    class Own(web.View):
        @rate_limit("gold", key=path())
        async def get(self): ...
    async def default(request): ...
    @exempt
    async def free(request): ...
    app = web.Application()
    app.add_routes([web.view("/own", Own), web.get("/default", default), web.get("/free", free)])
    install(app, limiter, defaults=[Limit("free", key=client_address())])
    """,
    "litestar": """
    from litestar import Litestar, get
    from paceline.integrations.litestar import *
    @get("/own")
    @rate_limit("gold", key=path())
    async def own() -> str: ...
    @get("/default")
    async def default() -> str: ...
    @get("/free")
    @exempt
    async def free() -> str: ...
    plugin = RateLimitPlugin(limiter, defaults=[Limit("free", key=client_address())])
    app = Litestar([own, default, free], plugins=[plugin], openapi_config=None, logging_config=None)
    """,
}


@pytest.mark.parametrize("source", OTHERS.values(), ids=OTHERS)
def test_other_frameworks(lint: Lint, source: str) -> None:
    status, written = lint(source)
    assert status == 0
    assert sorted(written.splitlines()[1:]) == [
        "GET\t/default\tfree\tclient address\tdefault",
        "GET\t/free\t-\t-\texempt",
        "GET\t/own\tgold\tpath\troute",
    ]


def test_django(tmp_path: Path) -> None:
    """In a process of its own, as it has one configuration."""
    (tmp_path / "project.py").write_text(
        PLANS
        + dedent("""
        import django
        from django.conf import settings
        from django.core.wsgi import get_wsgi_application
        from django.http import HttpResponse
        from django.urls import include, path as url
        from paceline.integrations.django import *
        settings.configure(
            ROOT_URLCONF=__name__, SECRET_KEY="x", PACELINE_LIMITER=limiter,
            MIDDLEWARE=["paceline.integrations.django.RateLimitMiddleware"],
            PACELINE_RULES=[PathRule("/nowhere", "gold", key=client_address())],
            PACELINE_DEFAULTS=[Limit("free", key=client_address())], REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
        )
        django.setup()
        from rest_framework.views import APIView
        from paceline.integrations.drf import throttle
        class Rest(APIView):
            throttle_classes = [throttle("gold", key=route())]
        @rate_limit("gold", key=path())
        def own(request): ...
        def default(request): ...
        urlpatterns = [
            url("own", own),
            url("shop/", include([url("items/<int:id>", default), url("rest", Rest.as_view())])),
            url("free", exempt(lambda request: None)),
        ]
        application = get_wsgi_application()
        """)
    )
    command = [sys.executable, "-m", "paceline", "plans", "lint", "project:application", "--json"]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stderr
    found: Any = json.loads(ended.stdout)
    assert {
        route["path"]: [(*limit["plans"], limit["from"]) for limit in route["limits"]] for route in found["routes"]
    } == {
        "/own": [("gold", "route")],
        "/shop/items/<int:id>": [("free", "default")],
        "/shop/rest": [("gold", "route")],
        "/free": [],
    }
    assert found["unmatchedRules"] == ["PathRule('/nowhere', 'gold')"]


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("linted:app", "app = 5", "int is no application of"),
        ("linted:nothing", "", "can't be loaded"),
        ("missing_module:app", "", "No module named 'missing_module'"),
        ("linted:app", "raise RuntimeError('broken')", "can't be loaded: broken"),
    ],
)
def test_what_is_no_application_is_named(lint: Lint, name: str, source: str, problem: str) -> None:
    status, written = lint(source, name=name)
    assert status == 2
    assert problem in written
    assert "Traceback" not in written


def test_the_documents_of_a_mounted_application_are_not_listed(lint: Lint) -> None:
    mounted = """
    shop = FastAPI(docs_url="/handbook")
    @shop.get("/docs")
    async def own(): ...
    app.mount("/shop", shop)
    """
    _, shown = lint(FASTAPI + dedent(mounted), "--json")
    paths = [route["path"] for route in json.loads(shown)["routes"]]
    assert [path for path in paths if path.startswith("/shop")] == ["/shop/docs"]
