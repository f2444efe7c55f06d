"""The console's first page: what somebody must do now, the picture of what waits before its limit; five places."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from paceline import DispatchQueue
from tests.acceptance.console_axe import require_axe, violations
from tests.acceptance.console_browser import Console, browser, chromium, token, window
from tests.acceptance.console_browser import same_page as page
from tests.acceptance.service import Service
from tests.contracts.queue.items import dead_letter

__all__ = ["browser", "chromium", "page", "window"]

WAITING = 120
GB = "GB29NWBK60161331926819"
TOO_WIDE = """[...document.querySelectorAll('body *')]
    .filter(each => each.closest('.tile') === each && each.scrollWidth > each.clientWidth
        || !each.closest('.scroll, nav, .unseen, .skip') && each.getBoundingClientRect().right > innerWidth + 1)
    .map(each => `${each.tagName} ${each.textContent.slice(0, 60)}`)"""
LONG_NAME = "AN_ITEM_TYPE_WITH_A_NAME_THAT_IS_AS_LONG_AS_IT_MAY_BE_64_SIGNS_X"


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("console")
    tokens = {"operator": token(directory, "operator", ["admin"]), "reader": token(directory, "reader", ["read"])}
    asyncio.run(_fill(f"sqlite:///{directory / 'paceline.db'}"))
    with Service(directory) as service:
        made = Console(service, directory, tokens)
        with made.api() as http:
            answer = http.patch("/admin/dispatch/INVOICE", json={"rate": "2/second"})
            assert answer.status_code == 200, answer.text
            now = datetime.now(UTC)
            times = [(now + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ") for hours in (1, 3, 2)]
            events = [{"eventId": f"e{n}", "requestedTime": at} for n, at in enumerate(times)]
            assert http.post("/api/v1/slots/batch", json={"events": events}).status_code == 200
        yield made


async def _fill(url: str) -> None:
    async with DispatchQueue.open(url) as queue:
        await queue.configure("INVOICE", rate="50/second")
        await queue.configure(LONG_NAME, concurrency=1)
        await queue.configure("PAY", concurrency=1)
        await queue.enqueue_many("INVOICE", [(f"i{n}", {}, None) for n in range(WAITING)])
        await queue.enqueue_many(LONG_NAME, [("one", {}, None)])
        await dead_letter(queue.store, "broken", "also-broken")


def test_the_first_thing_is_what_waits_before_the_limit(page: Page, console: Console) -> None:
    page.goto("/#/now")
    picture = page.locator("figure.flow")
    expect(picture).to_contain_text(f"INVOICE {WAITING} wait")
    expect(picture).to_contain_text("of 2 per second in 24 h")
    # After a minute in which nothing began, it says that.
    end = "(, the last begins by|, and nothing moves)"
    expect(picture.get_by_role("img", name=re.compile(f"INVOICE: .*{WAITING} wait.*{end}"))).to_be_visible()
    expect(picture).to_contain_text("limit 2 per second")
    for line in ("flow-waits", "flow-arrived", "flow-limit"):
        expect(picture.locator(f"svg .{line}")).to_have_count(1)


def test_a_queue_that_stands_still_is_not_said_to_be_done_soon(page: Page, console: Console) -> None:
    page.goto("/#/now")
    moves = page.get_by_role("img", name=re.compile("INVOICE: .*the last begins by"))
    stands = page.get_by_role("img", name=re.compile("INVOICE: .*late by [0-9]+ (min|h).*, and nothing moves"))
    expect(stands).to_be_visible(timeout=120_000)
    expect(moves).to_have_count(0)
    expect(page.locator("svg .flow-drain")).to_have_count(0)


def test_open_problems_lead_to_their_rows(page: Page, console: Console) -> None:
    page.goto("/#/now")
    problem = page.get_by_role("listitem").filter(has_text="wait for a decision")
    expect(problem).to_contain_text("Dead letters")
    problem.get_by_role("link", name="2 of PAY").click()
    expect(page.get_by_role("table", name="Items of PAY")).to_contain_text("also-broken")


def test_a_queue_that_is_paused_is_a_problem_at_once_and_has_no_end(page: Page, console: Console) -> None:
    parties = {"payer": {"name": "A", "iban": "DE89370400440532013000"}, "payee": {"name": "B", "iban": GB}}
    payment = {"paymentId": "held", "amount": "1.00", "currency": "EUR", **parties}
    with console.api() as http:
        assert http.patch("/admin/dispatch/PAYMENT", json={"enabled": False}).status_code == 200
        soon = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert http.post("/api/v1/payments", json=payment | {"executeAt": soon}).status_code == 202
        page.goto("/#/now")
        problem = page.get_by_role("listitem").filter(has_text="Paused")
        expect(problem).to_contain_text("PAYMENT: 1 is due, and none starts", timeout=30_000)
        problem.get_by_role("link", name="PAYMENT").click()
        says = page.locator("figure.flow .flow-says")
        expect(says).to_contain_text("and nothing moves")
        # An application's limit is of its calls; how many items began in a second is no part of it.
        expect(says).to_contain_text("calls per second")
        expect(says).not_to_contain_text("peak")
        page.goto("/#/now")
        problem.get_by_role("button", name="Start dispatching PAYMENT").click()
        page.get_by_role("dialog").get_by_role("button", name="Start it").click()
        expect(problem).to_have_count(0, timeout=30_000)
        assert http.get("/admin/dispatch/PAYMENT").json()["enabled"] is True


def test_no_end_is_foretold_while_the_breaker_of_an_application_is_open(page: Page, console: Console) -> None:
    down: list[Any] = [{"name": "downstream", "status": "DOWN", "data": {"reason": "BreakerOpen"}}]
    in_a_minute = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    checks: list[list[Any]] = []

    def overview(route: Route) -> None:
        parts = route.fetch().json()
        flow = parts["flow"] | {"limitBy": "application", "waiting": 7, "late": 0, "doneBy": in_a_minute}
        route.fulfill(json=parts | {"flow": flow, "checks": checks[-1]})

    page.route("**/console/stream*", lambda route: route.fulfill(content_type="text/event-stream", body=""))
    page.route("**/console/overview", overview)
    says = page.locator("figure.flow .flow-says")
    for check, said in (([], "the last begins by"), (down, "and nothing moves")):
        checks.append(check)
        page.goto("/#/limits")
        page.goto("/#/now")
        expect(says).to_contain_text(said)
    page.unroute("**/console/overview")
    page.unroute("**/console/stream*")


def test_what_is_late_and_on_its_way_is_not_called_well(page: Page, console: Console) -> None:
    late = {"itemType": "ORDER", "enabled": True, "attended": True, "depth": {"READY": 3}, "late": 3}
    ages: list[int | None] = []

    def overview(route: Route) -> None:
        queue = late | {"oldestReadyAgeSecs": ages[-1]}
        route.fulfill(json=route.fetch().json() | {"queues": [queue], "checks": []})

    page.route("**/console/stream*", lambda route: route.fulfill(content_type="text/event-stream", body=""))
    page.route("**/console/overview", overview)
    state = page.locator(".state")
    for age, said in ((27, "Catching up ORDER (3 are due, 27 s late)"), (None, "All is well")):
        ages.append(age)
        page.goto("/#/limits")
        page.goto("/#/now")
        expect(state).to_have_text(said)
    page.unroute("**/console/overview")
    page.unroute("**/console/stream*")


def test_marks_name_who_changed_the_limit(page: Page, console: Console) -> None:
    page.goto("/#/dispatch/INVOICE")
    mark = page.get_by_role("region", name="The flow of INVOICE").get_by_role("listitem").first
    expect(mark).to_contain_text("operator rate 2/second")


def test_numbers_and_charts_of_applications_have_the_words_that_these_bring(page: Page, console: Console) -> None:
    tiles = page.locator(".tile.rate span:first-child")
    page.goto("/#/now")
    expect(tiles.filter(has_text="Calls to the bank")).to_be_visible()
    expect(tiles.filter(has_text=re.compile("^Messages$"))).to_be_visible()
    page.goto("/#/charts")
    expect(page.get_by_role("heading", name="Calls to the bank")).to_be_visible()
    # Without the applications' pages, the core has no words of theirs.
    page.route("**/console/pages", lambda route: route.fulfill(json=[]))
    page.reload()
    expect(page.get_by_role("heading", name="Calls of downstreams")).to_be_visible()
    page.goto("/#/now")
    expect(tiles.filter(has_text="Calls of downstreams")).to_be_visible()
    expect(tiles.filter(has_text=re.compile("^Messages$"))).to_have_count(0)
    page.unroute("**/console/pages")
    page.reload()


def test_five_places_hold_all_pages(page: Page, console: Console) -> None:
    page.goto("/#/now")
    places = page.get_by_role("navigation", name="Places").get_by_role("link")
    expect(places).to_have_text(["Now", "Limits", "Work", "Apps", "Admin"])
    pages = page.get_by_role("navigation", name="Pages")
    expect(pages).to_be_hidden()
    places.nth(2).click()
    expect(pages.get_by_role("link")).to_have_text(["Dispatch", "Charts", "Periodic", "Workers", "Downstreams"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Dispatch")
    pages.get_by_role("link", name="Workers").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    expect(places.nth(2)).to_have_attribute("aria-current", "true")


def test_configs_are_searched_and_paged_by_the_service(page: Page, console: Console) -> None:
    with console.api() as http:
        for number in range(120):
            limit = {"configName": f"shop-{number:03}", "maxPerWindow": 5, "windowSize": "PT4S"}
            assert http.post("/admin/rate-limit/config", json=limit).status_code == 200
    page.goto("/#/configs")
    rows = page.get_by_role("table", name="Configs").get_by_role("row")
    expect(rows).to_have_count(51)
    page.locator("main").get_by_label("Search for").fill("SHOP-")
    page.get_by_role("button", name="Filter").click()
    expect(rows.nth(1)).to_contain_text("shop-000")
    page.get_by_role("link", name="Next page").click()
    expect(rows.nth(1)).to_contain_text("shop-050")
    page.get_by_role("link", name="Next page").click()
    expect(rows).to_have_count(21)
    page.get_by_role("link", name="shop-119").click()
    expect(page.get_by_role("heading", name="Change shop-119")).to_be_visible()


def test_slots_are_listed_the_latest_first(page: Page, console: Console) -> None:
    page.goto("/#/slots")
    rows = page.get_by_role("table", name="Slots").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("e1")
    expect(rows.nth(3)).to_contain_text("e0")


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_long_names_fit_and_axe_finds_nothing(page: Page, console: Console, width: int) -> None:
    require_axe()
    page.set_viewport_size({"width": width, "height": 900})
    for address in ("now", "dispatch/INVOICE", f"dispatch/{LONG_NAME}"):
        page.goto(f"/#/{address}")
        expect(page.locator("figure.flow")).to_be_visible()
        assert page.evaluate(TOO_WIDE) == [], (address, width)
        assert violations(page, address) == []


def test_charts_may_change_their_size_and_begin_with_the_busiest(page: Page, console: Console) -> None:
    page.goto("/#/charts")
    expect(page.locator(".plot canvas").first).to_be_visible()
    for width in (1000, 500, 1300):
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator("#banner")).to_be_hidden()
