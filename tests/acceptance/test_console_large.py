"""The console of a large installation: ten thousand configs that follow a template, and some hundred by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, Request, expect

from tests.acceptance.console_axe import require_axe, violations
from tests.acceptance.console_browser import Console, browser, chromium, go, log_in, token, window
from tests.acceptance.console_browser import page as own_page
from tests.acceptance.console_browser import same_page as page
from tests.acceptance.console_traffic import traffic_of
from tests.acceptance.service import Service

__all__ = ["browser", "chromium", "own_page", "page", "window"]

FOLLOWERS, NAMED = 10_000, 300
FIRST_PAGE_BYTES = 100_000
PART_BYTES = 100_000
"""What a page reads at most; it is sent again only as far as it changes."""
HEIGHT = 6000
"""Pixels of a page at most: what is long is paged."""


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("large")
    secret = token(directory, "operator", ["admin"])
    at = (datetime.now(UTC) + timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    with Service(directory) as service:
        made = Console(service, directory, {"operator": secret})
        with made.api() as http:
            for name in ("merchant-*", *(f"bank-{number:03}" for number in range(NAMED))):
                config = {"configName": name, "maxPerWindow": 5, "windowSize": "PT4S"}
                assert http.post("/admin/rate-limit/config", json=config).status_code == 200
            events = "\n".join(
                json.dumps({"eventId": f"e-{n}", "configName": f"merchant-{n:05}", "requestedTime": at})
                for n in range(FOLLOWERS)
            )
            kind = {"Content-Type": "application/x-ndjson"}
            booked = http.post("/api/v1/slots/batch", content=events, headers=kind, timeout=300)
            assert booked.status_code == 200
        yield made


def received(requests: list[Request]) -> int:
    """Bytes that were sent to the browser, heads included; without streams, which are open."""
    sizes = [request.sizes() for request in requests if request.resource_type != "eventsource"]
    return sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)


def test_the_first_page_is_small_and_one_answer_and_a_stream(own_page: Page, console: Console) -> None:
    traffic = traffic_of(own_page)
    log_in(own_page, console)
    expect(own_page.locator("#pulse")).to_contain_text("as of")
    own_page.wait_for_timeout(1)  # lets the events in
    read = [request.url.partition("/api/v1/console/")[2].partition("?")[0] for request in traffic.asked]
    assert [name for name in read if name] == ["overview", "stream"]
    total = received(traffic.asked)
    assert total < FIRST_PAGE_BYTES


@pytest.mark.parametrize(
    "route", ["now", "configs", "configs/merchant-00007", "slots", "replan/merchant-00007", "charts", "dispatch"]
)
def test_every_place_reads_and_shows_little(page: Page, console: Console, route: str) -> None:
    go(page, "#/audit")
    expect(page.locator("#pulse")).to_contain_text("as of")
    traffic = traffic_of(page)
    go(page, f"#/{route}")
    expect(page.get_by_role("heading", level=1)).to_have_text(route.partition("/")[0].capitalize())
    expect(page.locator("#pulse")).to_contain_text("as of")
    page.wait_for_timeout(1)
    read = [request for request in traffic.asked if "/api/" in request.url and request.resource_type != "eventsource"]
    high = page.evaluate("document.documentElement.scrollHeight")
    assert len(read) == 1
    assert received(read) < PART_BYTES
    assert high < HEIGHT


def test_a_template_stands_for_its_configs_until_somebody_looks_for_one(page: Page, console: Console) -> None:
    go(page, "#/configs")
    rows = page.get_by_role("table", name="Configs").get_by_role("row")
    expect(rows).to_have_count(51)
    expect(page.get_by_role("table", name="Configs")).not_to_contain_text("merchant-0")
    search = page.locator("main").get_by_label("Search for")
    search.fill("merchant-*")
    search.press("Enter")
    page.get_by_role("link", name="10,000 follow it").click()
    expect(rows.nth(1)).to_contain_text("merchant-00000")
    expect(rows).to_have_count(51)
    page.get_by_role("link", name="Next page").click()
    expect(rows.nth(1)).to_contain_text("merchant-00050")
    page.get_by_role("link", name="All configs").click()
    expect(rows.nth(1)).to_contain_text("bank-000")
    search.fill("-09999")
    search.press("Enter")
    expect(rows).to_have_count(2)
    rows.nth(1).get_by_role("link", name="merchant-09999").click()
    expect(page.get_by_role("heading", name="Change merchant-09999")).to_be_visible()


def test_names_are_offered_while_one_is_typed(page: Page, console: Console) -> None:
    go(page, "#/replan")
    page.get_by_label("Config").fill("-0123")
    offered = page.locator("#config-names option")
    expect(offered).to_have_count(10)
    assert offered.first.get_attribute("value") == "merchant-01230"


def test_charts_offer_the_busiest_and_count_followers_together(page: Page, console: Console) -> None:
    go(page, "#/charts")
    choice = page.get_by_label("Config", exact=True)
    expect(choice.locator("option", has_text="bank-000")).to_have_count(1)
    assert choice.locator("option").count() <= 201
    with console.api() as http:
        history = http.get("/api/v1/console/history").json()
    assert sum(sum(line["booked"]) for line in history["configs"]) >= FOLLOWERS
    assert "merchant-*" in [line["configName"] for line in history["configs"]]
    assert len(history["configs"]) < 5


def test_everything_is_reached_by_keys_alone(page: Page, console: Console) -> None:
    require_axe()
    go(page, "#/audit")
    box = page.get_by_role("combobox", name="Search for an id")
    choices = page.get_by_role("listbox", name="Choices")
    page.keyboard.press("Control+k")
    expect(box).to_be_focused()
    page.keyboard.type("repl")
    expect(choices.get_by_role("option").first).to_have_text("ReplanLimits")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Replan")
    page.keyboard.press("Control+k")
    page.keyboard.type("chant-07777")
    expect(choices.get_by_role("option")).to_have_text(["merchant-07777config", "Re-plan merchant-07777action"])
    page.keyboard.press("ArrowDown")
    expect(choices.get_by_role("option", selected=True)).to_have_text("merchant-07777config")
    assert violations(page, "choices") == []
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Change merchant-07777")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("new pl")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="New plan")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("e-777")
    expect(choices.get_by_role("option").first).to_have_text("e-777event")
    page.keyboard.press("Escape")
    expect(choices).to_be_hidden()
