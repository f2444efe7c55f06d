"""The console of a service without applications has no page of theirs, and no link to one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.console_browser import Console, browser, chromium, go, log_in, page
from tests.acceptance.service import Service
from tests.app_environments import MAIN, ROOT, Python, environment

__all__ = ["browser", "chromium", "page"]

APPLICATIONS = re.compile("payment|feed|notification|message|sms", re.IGNORECASE)
PAGES = [script.stem for script in ROOT.glob("apps/*/src/*/service/console/*.js")]


class Elsewhere(Service):
    """`paceline serve` in another environment."""

    def __init__(self, python: Python) -> None:
        super().__init__(python.folder)
        self._python = python

    def command(self, *arguments: str) -> list[str]:
        return self._python.command(MAIN, *arguments)


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """In an environment where neither payments nor SMS is installed."""
    directory = tmp_path_factory.mktemp("alone")
    python = environment(directory)
    made = python(MAIN, "tokens", "create", "operator", "--scope", "admin", "--json")
    assert made.returncode == 0, made.stderr
    with Elsewhere(python) as service:
        yield Console(service, directory, {"operator": json.loads(made.stdout)["token"]})


def test_no_page_of_an_application_is_there_or_linked(page: Page, console: Console) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    log_in(page, console)
    places = page.get_by_role("navigation", name="Places")
    expect(places.get_by_role("link")).to_have_text(["Now", "Limits", "Work", "Admin"])
    for place in ("Limits", "Work", "Admin", "Now"):
        places.get_by_role("link", name=place).click()
        expect(places.get_by_role("link", name=place)).to_have_attribute("aria-current", "true")
        links = page.get_by_role("link").evaluate_all("all => all.map(each => each.href + ' ' + each.textContent)")
        assert [link for link in links if APPLICATIONS.search(link)] == []
    assert "payments" in PAGES
    for name in PAGES:
        go(page, "#/limits")
        expect(page.locator("h1")).to_have_text("Limits")
        go(page, f"#/{name}/some-id")
        expect(page.locator("h1")).to_have_text("Now")
    assert {f"{name}.js" for name in PAGES} & {*asked} == set(), "none of their scripts was asked for"
    for name in PAGES:
        assert page.request.get(f"{console.service.url}/console/{name}.js").status == 404
