"""The limit line of a picture is moved, by the pointer or by keys; what that would do is shown; it is made with its
re-plan, and undone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from paceline import DispatchQueue
from tests.acceptance.console_axe import require_axe, violations
from tests.acceptance.console_browser import Console, agree, browser, chromium, go, log_in, token, window
from tests.acceptance.console_browser import page as own_page
from tests.acceptance.console_browser import same_page as page
from tests.acceptance.service import Service, until

__all__ = ["browser", "chromium", "own_page", "page", "window"]

LATER = "2031-01-01T00:00:00Z"
BOOKED, WAITING = 20, 120


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("trial")
    tokens = {"operator": token(directory, "operator", ["admin"]), "viewer": token(directory, "viewer", ["view"])}
    asyncio.run(_fill(f"sqlite:///{directory / 'paceline.db'}"))
    with Service(directory) as service:
        yield Console(service, directory, tokens)


async def _fill(url: str) -> None:
    async with DispatchQueue.open(url) as queue:
        await queue.configure("INVOICE", rate="2/second")
        await queue.enqueue_many("INVOICE", [(f"i{n}", {}, None) for n in range(WAITING)])


def book(http: httpx.Client, name: str) -> None:
    """A config of five in four seconds, and four windows full of slots."""
    config = {"configName": name, "maxPerWindow": 5, "windowSize": "PT4S", "firstWindow": "whole"}
    assert http.post("/admin/rate-limit/config", json=config).status_code == 200
    events = [{"eventId": f"{name}-{n}", "requestedTime": LATER} for n in range(BOOKED)]
    assert http.post("/api/v1/slots/batch", json={"configName": name, "events": events}).status_code == 200


def last_slot(http: httpx.Client, name: str) -> str:
    slots = http.get(f"/api/v1/slots?configName={name}&sort=-scheduledTime&limit=1").json()["slots"]
    return str(slots[0]["scheduledTime"])


def active(http: httpx.Client, name: str) -> int:
    return int(http.get(f"/admin/rate-limit/config?name={name}").json()["maxPerWindow"])


def handle(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=f"Try another pace for {name}")


def test_a_limit_is_tried_made_with_its_replan_and_undone_by_keys_alone(page: Page, console: Console) -> None:
    with console.api() as http:
        book(http, "keys")
        last = last_slot(http, "keys")
        go(page, "#/configs/keys")
        expect(handle(page, "keys")).to_have_attribute("aria-valuetext", "1.3 per second")
        handle(page, "keys").focus()
        for _ in range(5):
            page.keyboard.press("ArrowUp")
        expect(handle(page, "keys")).to_be_focused()
        trial = page.get_by_role("status").filter(has_text="Try it first")
        expect(trial).to_contain_text("10 in 4 s instead of 5.")
        expect(trial).to_contain_text(re.compile(rf"\d+ of {BOOKED} booked slots would move earlier; the last one"))
        assert (active(http, "keys"), last_slot(http, "keys")) == (5, last), "it was only tried"
        trial.get_by_role("button", name="Change it and re-plan").press("Enter")
        agree(page, "Change it and re-plan")
        undo = page.get_by_role("button", name="Undo")
        expect(undo).to_be_visible()
        assert active(http, "keys") == 10
        assert last_slot(http, "keys") < last
        marks = page.get_by_role("region", name="The flow of keys").get_by_role("listitem")
        expect(marks.first).to_contain_text("operator re-planned earlier")
        expect(marks.nth(1)).to_contain_text("operator max per window 10")
        undo.press("Enter")
        until(lambda: page.evaluate("true") and active(http, "keys") == 5)
        until(lambda: page.evaluate("true") and last_slot(http, "keys") >= last[:19])
        history = http.get("/admin/rate-limit/config/history?name=keys").json()["versions"]
        assert [version["maxPerWindow"] for version in history] == [5, 10, 5]


def test_the_line_is_dragged_and_left(page: Page, console: Console) -> None:
    with console.api() as http:
        book(http, "dragged")
        go(page, "#/configs/dragged")
        handle(page, "dragged").scroll_into_view_if_needed()
        box = handle(page, "dragged").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x, y + 40, steps=4)
        expect(page.locator(".flow-tried")).to_have_count(1)
        page.mouse.up()
        page.mouse.move(x, y - 60)
        trial = page.get_by_role("status").filter(has_text="Try it first")
        expect(trial).to_contain_text("would move later")
        trial.get_by_role("button", name="Leave it").click()
        expect(page.locator(".flow-tried")).to_have_count(0)
        assert active(http, "dragged") == 5


def test_an_earlier_version_is_gone_back_to(page: Page, console: Console) -> None:
    with console.api() as http:
        book(http, "back")
        config = {"configName": "back", "maxPerWindow": 7}
        assert http.post("/admin/rate-limit/config", json=config).status_code == 200
        go(page, "#/configs/back")
        page.get_by_role("button", name="Back to 5, as in version 1").click()
        expect(page.get_by_role("status").filter(has_text="Try it first")).to_contain_text("5 in 4 s instead of 7")
        page.get_by_role("button", name="Change it and re-plan").click()
        agree(page, "Change it and re-plan")
        until(lambda: page.evaluate("true") and active(http, "back") == 5)


@pytest.mark.parametrize("route", ["now", "dispatch/INVOICE"])
def test_the_rate_of_a_queue_is_tried_made_and_undone(page: Page, console: Console, route: str) -> None:
    with console.api() as http:

        def rate() -> object:
            return http.get("/admin/dispatch/INVOICE").json()["rate"]

        go(page, f"#/{route}")
        expect(page.get_by_role("heading", level=1)).to_have_text(route.partition("/")[0].capitalize())
        handle(page, "INVOICE").focus()
        for _ in range(10):
            page.keyboard.press("ArrowUp")
        trial = page.get_by_role("status").filter(has_text="Try it first")
        expect(trial).to_contain_text("3 per second instead of 2.")
        expect(trial).to_contain_text(f"The last of {WAITING} that wait would begin at")
        trial.get_by_role("button", name="Change the rate").click()
        agree(page, "Change the rate")
        page.get_by_role("button", name="Undo").click()
        until(lambda: page.evaluate("true") and rate() == "2/second")


def test_whoever_may_only_look_has_no_handle(own_page: Page, console: Console) -> None:
    log_in(own_page, console, "viewer", "#/dispatch/INVOICE")
    expect(own_page.locator("figure.flow")).to_be_visible()
    expect(own_page.get_by_role("slider")).to_have_count(0)


def test_axe_finds_nothing_while_a_limit_is_tried(page: Page, console: Console) -> None:
    require_axe()
    with console.api() as http:
        book(http, "seen")
    go(page, "#/configs/seen")
    handle(page, "seen").press("ArrowUp")
    expect(page.get_by_role("button", name="Leave it")).to_be_visible()
    assert violations(page, "configs/seen") == []
