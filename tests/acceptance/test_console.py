"""The console in a real browser: Chromium, driven over two service processes, with ids that would be markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from paceline import BlockingDownstream
from tests.acceptance.console_axe import require_axe, violations
from tests.acceptance.console_browser import (
    VIEWPORT,
    Console,
    agree,
    browser,
    chromium,
    enter_token,
    go,
    log_in,
    token,
    window,
)
from tests.acceptance.console_browser import page as own_page
from tests.acceptance.console_browser import same_page as page
from tests.acceptance.console_data import fill_up
from tests.acceptance.service import Service, run
from tests.effort import combinations, is_thorough

__all__ = ["browser", "chromium", "own_page", "page", "window"]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
STREAM = "**/console/stream*"
TELL_OF_STREAMS = """
window.EventSource = class extends EventSource {
  constructor(...address) {
    super(...address)
    this.addEventListener('open', () => console.debug('a stream is open'))
  }
}
"""
PAGES = (
    *("now", "charts", "slots", "configs", "replan", "limits", "dispatch", "periodic", "workers"),
    *("downstreams", "payments", "feeds", "notifications", "messages", "audit"),
)

DETAILS = (
    "slots/default/e1",
    "configs/default",
    "limits/tiny",
    "replan/default",
    "dispatch/PAYMENT?status=READY&sort=-executeAt",
    "dispatch/JOB",
    "dispatch/JOB?status=DEAD_LETTER",
    "dispatch/PAYMENT/item/pay-1",
    "dispatch/PAYMENT/lanes",
    "payments/pay-1",
    "payments?status=SCHEDULED",
    "search?q=pay",
    "search?q=nothing",
)
"""Pages within pages, and lists with what narrows them down."""


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("console")
    scopes = {"operator": ["admin"], "reader": ["read"], "clerk": ["read", "assign"], "leaver": ["read"]}
    tokens = {name: token(directory, name, scopes[name]) for name in scopes}
    fill_up(directory / "paceline.db", [], dead=0)
    with Service(directory, "--workers", "2") as service:
        made = Console(service, directory, tokens)
        fill(made)
        yield made


def fill(console: Console) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:00Z")
    with console.api() as http:
        for name in ("default", HOSTILE):
            limit = {"configName": name, "maxPerWindow": 5, "windowSize": "PT4S"}
            assert http.post("/admin/rate-limit/config", json=limit).status_code == 200
        events = [{"eventId": name, "requestedTime": soon} for name in (*(f"e{n}" for n in range(12)), HOSTILE)]
        assert http.post("/api/v1/slots/batch", json={"events": events}).status_code == 200
        plan = {"algorithm": "fixed_window", "limit": 3, "window": "PT1H"}
        for name in ("tiny", HOSTILE):
            assert http.put(f"/admin/plans/{name}", json=plan).status_code == 200
        party = {"name": HOSTILE, "iban": "DE89370400440532013000"}
        payment = {
            "amount": "1.00",
            "currency": "EUR",
            "payer": party,
            "payee": party | {"iban": "GB29NWBK60161331926819"},
            "executeAt": soon,
        }
        for name in ("pay-1", "pay-2", HOSTILE):
            accepted = http.post("/api/v1/payments", json={"paymentId": name, **payment})
            assert accepted.status_code == 202, accepted.text


def test_a_token_logs_in_and_is_kept_nowhere_a_script_could_read_it(own_page: Page, console: Console) -> None:
    own_page.goto("/")
    token = own_page.get_by_label("Token")
    expect(token).to_be_focused()
    token.fill("pl_wrong")
    token.press("Enter")
    expect(own_page.get_by_text("no token of this service")).to_be_visible()
    token.fill(console.tokens["operator"])
    token.press("Enter")
    expect(own_page.get_by_role("heading", name="Now")).to_be_visible()
    kept = own_page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert kept == f'[{{}},{{}},"","{console.service.url}/"]'
    cookie = own_page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert console.tokens["operator"] not in (cookie["value"], own_page.content())
    own_page.reload()
    expect(own_page.get_by_text("operator", exact=True)).to_be_visible()
    own_page.get_by_role("button", name="Log out").click()
    expect(token).to_be_visible()
    assert own_page.context.cookies() == []


def test_downstreams_show_what_has_left_and_what_changed(page: Page, console: Console) -> None:
    url = f"sqlite:///{console.directory / 'paceline.db'}"
    with BlockingDownstream("bank", url, rate="50/second", call_timeout=1) as bank:
        for number in range(5):
            with bank.call() as call:
                if number == 0:
                    call.refused()
    with console.api() as http:
        for change in ({"rate": "10/second"}, {"paused": True}):
            assert http.patch("/admin/downstreams/bank", json=change).status_code == 200
    page.goto("/#/downstreams")
    row = page.get_by_role("row").filter(has_text="bank").first
    expect(row).to_contain_text("10/second")
    expect(row).to_contain_text("paused by an operator")
    expect(row.get_by_role("cell")).to_contain_text(["bank", "10/second", "10.0", "5", "", "1", "0", "0", "paused"])
    changes = page.get_by_role("region", name="Changes of bank")
    expect(changes).to_contain_text("50.0 → 10.0 per second")
    expect(changes).to_contain_text("paused by an operator")
    expect(page.get_by_role("img", name="bank: Calls")).to_be_visible()
    with console.api() as http:
        assert http.patch("/admin/downstreams/bank", json={"paused": False, "rate": None}).status_code == 200


@pytest.mark.parametrize(("width", "scheme"), combinations([390, 1440], ["dark", "light"]))
def test_axe_finds_nothing_on_any_page(
    page: Page, console: Console, scheme: Literal["light", "dark"], width: int
) -> None:
    """The rules of WCAG 2.2 AA, and axe's best practices."""
    require_axe()
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    problems = violations(page, "login")
    enter_token(page, console)
    for address in [*PAGES, *DETAILS]:
        page.goto(f"/#/{address}")
        expect(page.get_by_role("heading", level=1)).to_have_text(re.split("[/?]", address)[0].capitalize())
        if address.startswith("search"):  # which is not refreshed
            expect(page.get_by_role("status").filter(has_text=re.compile("found|Nothing")).first).to_be_visible()
        else:
            expect(page.locator("#pulse")).to_contain_text("as of")
        problems += violations(page, address)
    page.goto("/#/dispatch/PAYMENT")
    page.get_by_role("button", name="Stop dispatching PAYMENT").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    problems += violations(page, "a question")
    page.get_by_role("button", name="Leave it").click()
    page.set_viewport_size(VIEWPORT)
    assert problems == []


def test_the_skip_link_keeps_the_page_and_the_theme_is_kept(page: Page, console: Console) -> None:
    go(page, "#/limits")
    expect(page.get_by_role("heading", level=1)).to_have_text("Limits")
    page.get_by_role("link", name="Skip to the content").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("/#/limits")
    page.emulate_media(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate(ground) != light
    page.reload()
    page.get_by_role("button", name="Theme: dark").click()
    assert page.evaluate(ground) == light
    assert page.evaluate("localStorage.length") == 0


def test_every_page_is_one_answer_and_a_stream_and_fits_a_phone(own_page: Page, console: Console) -> None:
    asked: list[str] = []
    own_page.add_init_script(TELL_OF_STREAMS)
    log_in(own_page, console, path="#/search")
    own_page.clock.install()
    own_page.on("request", lambda request: asked.append(request.url) if "/api/" in request.url else None)
    for name in PAGES:
        asked.clear()
        with own_page.expect_console_message(lambda message: message.text == "a stream is open"):
            own_page.goto(f"/#/{name}")
        expect(own_page.get_by_role("heading", level=1)).to_have_text(name.capitalize())
        expect(own_page.locator("#pulse")).to_contain_text("as of")
        own_page.clock.run_for(6_000)  # more than polling would wait, and much less than a stream may be silent for
        assert [re.sub(".*/console/([a-z]+).*", r"\1", url) for url in asked] in (
            ["overview", "stream"],
            ["page", "stream"],
        ), (name, asked)
        expect(own_page.locator("#banner")).to_be_hidden()
        unnamed = own_page.evaluate(
            "[...document.querySelectorAll('input:not([hidden]), select, textarea, button, meter, [role=img]')]"
            ".filter(each => !(each.labels?.length || each.ariaLabel || each.textContent.trim())).length"
        )
        assert unnamed == 0, name
        for width in (1280, 360):
            own_page.set_viewport_size({"width": width, "height": 800})
            assert own_page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)


def test_what_callers_stored_is_shown_as_text(page: Page, console: Console) -> None:
    go(page, "#/slots")
    page.get_by_label("Event id").fill(HOSTILE)
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("dd code", has_text=HOSTILE)).to_be_visible()
    for path, shown in (("configs", HOSTILE), ("limits", HOSTILE), ("dispatch/PAYMENT", HOSTILE)):
        page.goto(f"/#/{path}")
        page.reload()  # the page before it has a link of this name, too
        page.get_by_role("link", name=shown, exact=True).first.click()
        expect(page.get_by_role("heading", level=2).filter(has_text=HOSTILE).first).to_be_visible()
    page.get_by_role("link", name="Show the payment").click()
    expect(page.get_by_role("heading", level=2, name=HOSTILE)).to_be_visible()
    page.goto("/#/audit")
    expect(page.get_by_text("operator", exact=True).last).to_be_visible()
    expect(page.locator("code.excerpt", has_text="<img src=x").first).to_be_visible()
    assert page.locator("main img").count() == 0


def test_an_event_is_looked_up_explained_and_cancelled(own_page: Page, console: Console) -> None:
    log_in(own_page, console, "clerk", "#/slots/default/e11")
    expect(own_page.get_by_role("heading", name="Why this time")).to_be_visible()
    expect(
        own_page.get_by_role("listitem").filter(has_text=re.compile("The window of .* of default was full"))
    ).to_have_count(2)
    own_page.get_by_role("button", name="Cancel this slot").click()
    own_page.keyboard.press("Escape")
    own_page.get_by_role("button", name="Cancel this slot").click()
    agree(own_page, "Cancel the slot")
    expect(own_page.locator(".notice")).to_contain_text("e11 is cancelled")
    with console.api() as http:
        assert http.get("/api/v1/slots/e11").status_code == 404
        assert http.get("/api/v1/slots/e10").status_code == 200


def test_a_limit_is_tried_changed_and_recorded(page: Page, console: Console) -> None:
    go(page, "#/configs/default")
    page.get_by_label("Limit").fill("50")
    page.get_by_label("Events").fill("1000")
    page.get_by_role("button", name="Preview").click()
    effect = page.get_by_role("table", name="The effect").get_by_role("row")
    expect(effect.nth(1)).to_contain_text("1.25")
    expect(effect.nth(2)).to_contain_text("12.5")
    with console.api() as http:
        assert http.get("/admin/rate-limit/config").json()["maxPerWindow"] == 5
    page.get_by_role("button", name="Make it the active version").click()
    agree(page, "Change it")
    versions = page.get_by_role("table", name="Versions").get_by_role("row")
    expect(versions.nth(1)).to_contain_text("50")
    expect(versions.nth(1)).to_contain_text("active")
    page.get_by_label("Calendar").fill("{")
    page.get_by_role("button", name="Make it the active version").click()
    expect(page.get_by_label("Calendar")).to_have_js_property("validationMessage", "This is not valid JSON.")
    page.get_by_label("Calendar").fill("")
    page.get_by_label("Window", exact=True).fill("four seconds")
    page.get_by_role("button", name="Make it the active version").click()
    agree(page, "Change it")
    expect(page.locator("#banner")).to_contain_text("windowSize")
    page.get_by_role("link", name="Admin").click()
    entry = page.get_by_role("table", name="Changes").get_by_role("row").filter(has_text="rate-limit/config")
    expect(entry.nth(0)).to_contain_text("400")
    expect(entry.nth(1)).to_contain_text("operator")
    expect(entry.nth(1)).to_contain_text("200")


def test_a_plan_is_made_tried_and_deleted(page: Page, console: Console) -> None:
    go(page, "#/limits")
    page.get_by_role("link", name="New plan").click()
    expect(page.locator("main")).to_be_focused()  # before, what is typed would go to the form of the page before
    page.get_by_label("Name").fill("made-here")
    page.get_by_label("Capacity").fill("2")
    page.get_by_role("button", name="Create it").click()
    expect(page.get_by_role("link", name="made-here")).to_be_visible()
    page.get_by_label("Key", exact=True).fill("user:1")
    page.get_by_label("Cost").fill("2")
    for button, text in (
        ("Peek", "would be admitted"),
        ("Acquire", "admitted"),
        ("Acquire", "denied"),
        ("Reset", "would"),
    ):
        page.get_by_role("button", name=button).click()
        if button == "Reset":
            agree(page, "Reset it")
        expect(page.get_by_role("status").get_by_text(text)).to_be_visible()
    page.get_by_role("button", name="Delete it").click()
    agree(page, "Delete it")
    expect(page.get_by_role("link", name="made-here")).to_have_count(0)


def test_the_kill_switch_and_items_are_worked_by_hand(page: Page, console: Console) -> None:
    go(page, "#/dispatch/PAYMENT")
    page.get_by_role("button", name="Stop dispatching PAYMENT").click()
    agree(page, "Stop it")
    expect(page.get_by_role("button", name="Start dispatching PAYMENT")).to_be_visible()
    with console.api() as http:
        assert http.get("/admin/dispatch/PAYMENT").json()["enabled"] is False
    page.get_by_role("button", name="Start dispatching PAYMENT").click()
    agree(page, "Start it")
    page.get_by_label("Status").select_option("READY")
    page.get_by_label("Mark pay-2").check()
    page.get_by_role("button", name="Cancel 1 item").click()
    agree(page, "Cancel")
    expect(page.get_by_role("link", name="pay-2", exact=True)).to_have_count(0)
    page.goto("/#/dispatch/PAYMENT/item/pay-2")
    expect(page.get_by_role("table", name="Audit")).to_contain_text("cancelled")


def test_a_token_sees_what_its_scope_allows_and_which_it_lacks(own_page: Page, console: Console) -> None:
    log_in(own_page, console, "reader")
    expect(own_page.get_by_role("heading", name="Next windows of the default config")).to_be_visible()
    own_page.goto("/#/slots/default/e0")
    expect(own_page.get_by_role("button", name="Cancel this slot")).to_be_disabled()
    expect(own_page.get_by_text("needs scope assign")).to_be_visible()
    own_page.goto("/#/dispatch")
    expect(own_page.get_by_text("Dispatch needs a token with the scope view")).to_be_visible()
    own_page.goto("/#/limits")
    expect(own_page.get_by_role("button", name="Acquire")).to_be_disabled()


def test_a_revoked_token_ends_at_the_login(own_page: Page, console: Console) -> None:
    log_in(own_page, console, "leaver")
    run(console.directory, "tokens", "revoke", "leaver")
    expect(own_page.get_by_label("Token")).to_be_visible()


def test_refreshing_stops_in_a_hidden_tab_and_an_outage_is_shown(own_page: Page, console: Console) -> None:
    log_in(own_page, console)
    expect(own_page.locator("#pulse")).to_contain_text("live as of")
    own_page.context.set_offline(True)
    expect(own_page.locator("#banner")).to_contain_text("does not answer")
    own_page.context.set_offline(False)
    expect(own_page.locator("#banner")).to_be_hidden()
    own_page.clock.install()
    with own_page.expect_request(STREAM):
        own_page.reload()
    expect(own_page.locator("#pulse")).to_contain_text("live as of")
    hide = "hidden => {Object.defineProperty(document, 'hidden', {value: hidden, configurable: true})}"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    own_page.evaluate(hide, True)
    own_page.evaluate(tell)
    assert is_quiet(own_page)
    own_page.evaluate(hide, False)
    with own_page.expect_request(STREAM) as resumed:
        own_page.evaluate(tell)
    assert "lastEventId=" in resumed.value.url, "what it has is not sent again"
    # Not `click`: it waits for animation frames, which stop with the clock.
    own_page.get_by_role("button", name="Pause refreshing").dispatch_event("click")
    assert is_quiet(own_page)
    with own_page.expect_request(STREAM):
        own_page.get_by_role("button", name="Resume refreshing").dispatch_event("click")


def test_one_stream_replaces_asking_and_asking_replaces_a_stream_that_fails(own_page: Page, console: Console) -> None:
    asked: list[str] = []
    log_in(own_page, console)
    expect(own_page.locator("#pulse")).to_contain_text("live as of")
    own_page.on("request", lambda request: asked.append(request.url))
    soon = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:00Z")
    queue = own_page.get_by_role("table", name="Queues").get_by_role("row").filter(has_text="PAYMENT")
    waiting = int(queue.get_by_role("cell").nth(1).inner_text())
    party, payee = ({"name": "A", "iban": iban} for iban in ("DE89370400440532013000", "GB29NWBK60161331926819"))
    payment = {"paymentId": "seen-live", "amount": "1.00", "currency": "EUR", "executeAt": soon}
    with console.api() as http:
        accepted = http.post("/api/v1/payments", json=payment | {"payer": party, "payee": payee})
        assert accepted.status_code == 202, accepted.text
    expect(queue.get_by_role("cell").nth(1)).to_have_text(str(waiting + 1))
    assert [url for url in asked if "/console/stream" not in url] == [], "the stream brought it"
    own_page.route(STREAM, lambda route: route.fulfill(status=503))
    with own_page.expect_request("**/console/overview"):
        own_page.reload()
    expect(own_page.locator("#pulse")).to_contain_text("live as of")
    expect(own_page.locator("#banner")).to_be_hidden()


def is_quiet(page: Page) -> bool:
    """Whether no request is made while time passes; requests in flight may finish."""
    for _ in range(5):
        asked: list[str] = []

        def note(request: Request, asked: list[str] = asked) -> None:
            asked.append(request.url)

        page.on("request", note)
        page.clock.run_for(30_000)
        if not asked:
            return True
    return False


def test_charts_share_a_range_a_zoom_and_a_zone_that_stand_in_the_address(page: Page, console: Console) -> None:
    go(page, "#/charts")
    drawn = page.locator(".plot canvas")
    expect(drawn).to_have_count(6)
    expect(page.get_by_text("Booked: ").first).to_contain_text("at most per minute")
    page.get_by_role("button", name="24 hours").click()
    expect(page.get_by_text("Booked: ").first).to_contain_text("at most per 10 minutes")
    page.get_by_label("Config").select_option("default")
    page.get_by_role("button", name=re.compile("^Times in")).click()
    expect(page.get_by_role("button", name=re.compile("^Times in UTC"))).to_be_visible()
    assert page.url.endswith("/#/charts/P1D/utc/default//JOB")
    page.reload()
    expect(page.get_by_role("button", name="24 hours")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Config")).to_have_value("default")
    expect(drawn).to_have_count(6)
    expect(page.locator(".u-legend").first).to_contain_text("Time (UTC)")
    # Hovering one chart shows the values of all of them.
    times = page.locator(".u-legend .u-series:first-child .u-value")
    place = page.locator(".u-over").first.bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + 20)
    expect(times.first).to_have_text(re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d"))
    assert times.nth(3).inner_text() == times.first.inner_text()
    # Dragging one zooms all of them.
    page.mouse.down()
    page.mouse.move(place["x"] + place["width"] * 0.75, place["y"] + 20)
    page.mouse.up()
    last = page.locator(".u-over").nth(3)
    last.hover(position={"x": 3, "y": 20})
    zoomed = times.nth(3).inner_text()
    page.get_by_role("button", name="Whole range").click()
    last.hover(position={"x": 3, "y": 20})
    assert "20" < times.nth(3).inner_text() < zoomed
    heat = page.get_by_role("table", name="How full each hour is, in percent")
    expect(heat.get_by_role("row").nth(7)).to_be_visible()


def test_without_tokens_there_is_nothing_to_log_in_to(browser: Browser, service: Service) -> None:
    context = browser.new_context(base_url=service.url)
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    expect(page.get_by_text("no login needed")).to_be_visible()
    # On an empty installation each page shows that, and names a command to try.
    for name in ("slots", "dispatch/PAYMENT", "dispatch/PAYMENT/lanes", "periodic", "payments", "feeds", "messages"):
        page.goto(f"/#/{name}")
        expect(page.locator(".empty code").first).to_be_visible()
        expect(page.locator("#banner")).to_be_hidden()
    require_axe()
    problems = []
    looks: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 390), ("dark", 1440))
    for number, (scheme, width) in enumerate(looks):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 900})
        for name in PAGES if is_thorough() else PAGES[number :: len(looks)]:
            page.goto(f"/#/{name}")
            expect(page.locator("#pulse")).to_contain_text("as of")
            problems += violations(page, name)
    assert problems == []
    context.close()


def test_one_box_finds_every_kind_of_id_by_keyboard_alone(page: Page, console: Console) -> None:
    go(page, "#/slots")
    box = page.get_by_role("combobox", name="Search for an id")
    page.keyboard.press("/")
    expect(box).to_be_focused()
    page.keyboard.type("pay-1")
    page.keyboard.press("Enter")
    found = page.get_by_role("table", name="What begins with pay-1")
    expect(found.get_by_role("row")).to_have_count(3)
    expect(found).to_contain_text("queue item")
    page.reload()
    expect(found).to_be_visible()
    expect(box).to_have_value("pay-1")
    found.get_by_role("link", name="pay-1").first.press("Enter")
    expect(page.get_by_role("heading", level=2, name="pay-1")).to_be_visible()
    page.goto(f"/#/search?q={quote(HOSTILE)}")
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(5)
    box.fill("nobody/")
    expect(box).to_have_value("nobody/")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing begins so.")).to_be_visible()


def test_everything_turns_grey_when_the_service_is_gone(page: Page, console: Console) -> None:
    go(page, "#/workers")
    alive = page.get_by_role("table", name="Dependencies").get_by_text("UP").first
    expect(alive).to_be_visible()
    colour = "badge => getComputedStyle(badge).filter"
    assert alive.evaluate(colour) == "none"
    page.context.set_offline(True)
    page.get_by_role("button", name="Pause refreshing").click()
    page.get_by_role("button", name="Resume refreshing").click()
    expect(page.locator("body.stale")).to_be_visible()
    assert alive.evaluate(colour) == "grayscale(1)"
    expect(page.locator("#pulse")).to_contain_text("not up to date")
    page.context.set_offline(False)
    expect(page.locator("body.stale")).to_have_count(0)
    assert alive.evaluate(colour) == "none"
