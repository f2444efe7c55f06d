"""The console's files: complete, fenced in, and free of whatever a strict policy forbids."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from paceline.server.console.files import console_files
from paceline.server.http.app import create_app
from paceline.server.setting_sections import IngressSettings
from paceline.server.settings import Settings

FILES = console_files()
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database_url=f"sqlite:///{tmp_path / 'console.db'}")


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as opened,
    ):
        yield opened


def source(name: str) -> str:
    return FILES[name].body.decode()


@pytest.mark.parametrize("path", ["/", "/console/app.js", "/console/console.css", "/console/icon.svg"])
async def test_every_file_is_fenced_in(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert answer.status_code == 200
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    for ours in ("script-src", "style-src", "img-src", "connect-src"):
        assert policy.pop(ours) == "'self'"
    for nobodys in ("base-uri", "form-action", "frame-ancestors", "trusted-types"):
        assert policy.pop(nobodys) == "'none'"
    assert policy == {"require-trusted-types-for": "'script'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "camera=()" in answer.headers["permissions-policy"]
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-cache"


async def test_the_apis_page_takes_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r"""(?:src|href)="([^"]*)\"""", page.text)
    assert len(named) == 4
    for path in named:
        assert path.startswith("console/")
        assert (await http.get(path)).status_code == 200, path
    for path in ("/docs", *named[1:]):
        policy = (await http.get(path)).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src ")
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
    assert not re.search(r"<script(?! src=)|\son[a-z]+=|https?:", page.text)
    for path in ("/redoc", "/docs/oauth2-redirect", "/console/docs/redoc.standalone.js", "/console/docs/..%2fcore.py"):
        assert (await http.get(path)).status_code == 404, path


async def test_what_is_for_one_caller_is_kept_nowhere(http: httpx.AsyncClient) -> None:
    for path in ("/api/v1/forecast", "/admin/plans", "/admin/audit", "/console/session", "/api/v1/slots/none"):
        assert (await http.get(path)).headers["cache-control"] == "no-store", path
    assert "no-store" not in (await http.get("/health/live")).headers.get("cache-control", "")


async def test_a_file_that_has_not_changed_is_not_sent_again(http: httpx.AsyncClient) -> None:
    first = await http.get("/console/app.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = await http.get("/console/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert (await http.get("/console/app.js", headers={"If-None-Match": '"other"'})).status_code == 200
    plain = await http.get("/console/app.js", headers={"Accept-Encoding": "identity"})
    assert (first.headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
    assert first.content == plain.content == FILES["app.js"].body
    assert first.headers["etag"] != plain.headers["etag"]
    assert first.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["/console/", "/console/none.js", "/console/..%2flogin.py", "/console/__init__.py"])
async def test_nothing_else_is_served(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 404


async def test_a_page_of_many_files_is_one_request_to_the_services_own_limits(settings: Settings) -> None:
    app = create_app(settings.model_copy(update={"ingress": IngressSettings(per_second=0.001, burst=1)}))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as http,
    ):
        assert (await http.get("/")).status_code == 200
        for name in FILES:
            assert (await http.get(f"/console/{name}")).status_code == 200, name
        for path in ("/", "/console/session"):
            assert (await http.get(path)).status_code == 429, path


def test_the_page_holds_no_code_of_its_own() -> None:
    page = source("console.html")
    assert re.findall(r"<script[^>]*>", page) == [
        '<script src="console/theme.js">',
        '<script type="module" src="console/app.js">',
    ]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_file_names_only_files_that_are_there(name: str) -> None:
    for file in re.findall(r"""["']/console/([\w.-]+)["']""", source(name)):
        assert file in FILES or file in ("session", "pages"), file
    assert not re.search(r"""["'(]\s*(https?:)?//(?!www\.w3\.org/2000/svg)""", source(name)), "something from elsewhere"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_keep_no_secret_and_make_no_markup(name: str) -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    if name != "limit_trial.js":  # what moves under the pointer is placed by its style, which the policy allows
        markup += r"|\.style\b"
    assert not re.search(markup, source(name))
    kept = r"sessionStorage|document\.cookie|Authorization"
    if name != "theme.js":  # the theme is no secret
        kept += "|localStorage"
    assert not re.search(kept, source(name))


def test_the_whole_console_is_small() -> None:
    assert sum(len(file.packed) for file in FILES.values()) < 100_000
