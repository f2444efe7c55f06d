"""A console with tokens, and a browser to look at it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from paceline.server.access.authenticator import create_token
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from tests.acceptance.service import Service

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--in-process-gpu"),
]
WIDTHS = (390, 820, 1440)
"""A phone, a tablet, a desk: the widths at which the console is looked at."""
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}
TIMEOUT_MS = 60_000
"""How long a page may take to do what it does in milliseconds: on a busy machine any of it may take long."""
expect.set_options(timeout=TIMEOUT_MS)


class Console(NamedTuple):
    """A service with tokens, and what is in it."""

    service: Service
    directory: Path
    tokens: dict[str, str]

    def api(self) -> httpx.Client:
        return self.service.client(headers={"Authorization": f"Bearer {self.tokens['operator']}"})


@pytest.fixture(scope="module")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
    if found is None:
        reason = "no Chromium is installed; Debian's chromium or chromium-headless-shell will do"
        if os.environ.get("PACELINE_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def browser(chromium: str, console: Console) -> Iterator[Browser]:
    """After the service: while a browser is open, its event loop is the one of this thread."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


def token(directory: Path, name: str, scopes: list[str]) -> str:
    async def work() -> str:
        async with open_access_store(Settings(database_url=f"sqlite:///{directory / 'paceline.db'}")) as store:
            secret, _ = await create_token(store, name, scopes)
        return secret

    return asyncio.run(work())


def open_page(browser: Browser, console: Console) -> tuple[Page, list[str]]:
    """A window, and what goes wrong in it: script errors, refused resources, requests to another host."""
    # Without motion there are fewer pictures to draw.
    context = browser.new_context(base_url=console.service.url, viewport=VIEWPORT, reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(TIMEOUT_MS)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("dialog", lambda dialog: wrong.append(dialog.message))
    opened.on("console", lambda line: wrong.append(line.text) if is_wrong(line.text, line.type) else None)
    opened.on("request", lambda asked: None if asked.url.startswith(console.service.url) else wrong.append(asked.url))
    return opened, wrong


@pytest.fixture
def page(browser: Browser, console: Console) -> Iterator[Page]:
    """A window in which nothing may fail."""
    opened, wrong = open_page(browser, console)
    yield opened
    title = opened.title()
    opened.context.close()
    assert "owned" not in title
    assert wrong == [], wrong


@pytest.fixture(scope="module")
def window(browser: Browser, console: Console) -> Iterator[tuple[Page, list[str]]]:
    opened, wrong = open_page(browser, console)
    yield opened, wrong
    opened.context.close()


@pytest.fixture
def same_page(window: tuple[Page, list[str]], console: Console) -> Iterator[Page]:
    """As `page`, logged in, and one for all tests of a file: to load the console takes as much as several presses."""
    opened, wrong = window
    wrong.clear()
    is_ready = opened.get_by_role("button", name="Log out").count() and not opened.locator("#dialog[open]").count()
    if not is_ready:  # new, logged out, at another page, or left by a test that failed
        opened.context.clear_cookies()
        log_in(opened, console)
    yield opened
    assert "owned" not in opened.title()
    assert wrong == [], wrong


class Look(NamedTuple):
    """How somebody sees the console."""

    theme: Literal["light", "dark"]
    width: int


THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LOOKS = [Look(theme, width) for theme in THEMES for width in WIDTHS]


@contextmanager
def seen_in(page: Page, look: Look) -> Iterator[None]:
    page.emulate_media(color_scheme=look.theme)
    page.set_viewport_size({"width": look.width, "height": VIEWPORT["height"]})
    yield
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(VIEWPORT)


def is_wrong(text: str, kind: str) -> bool:
    # The browser itself notes every answer beyond 2xx; those the tests look for.
    return kind in ("error", "warning") and not re.search(
        r"status of (400|401|403|404|409|412|429|503)|ERR_INTERNET_DISC|ERR_CONNECTION_RESET", text
    )


def log_in(page: Page, console: Console, name: str = "operator", path: str = "") -> None:
    page.goto(f"./{path}")
    enter_token(page, console, name)


def enter_token(page: Page, console: Console, name: str = "operator") -> None:
    page.get_by_label("Token").fill(console.tokens[name])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


GO = """hash => new Promise(resolve => {
    document.getElementById('said').className = 'unseen'
    if (location.hash === hash) return resolve()
    addEventListener('hashchange', resolve, {once: true})
    location.hash = hash
})"""


def go(page: Page, hash: str) -> None:
    """Opens a page of the console in a window that shows another. `goto` may return before the console has heard of
    it; and what an earlier test was told may lie over a button."""
    page.evaluate(GO, hash)


def agree(page: Page, verb: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=verb).click()
