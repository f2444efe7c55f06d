"""Changes from the console in a browser: they never undo what somebody else changed meanwhile, are sent once, and do
what was previewed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.acceptance.console_browser import (
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
from tests.acceptance.service import Service, until

__all__ = ["browser", "chromium", "own_page", "page", "window"]

HOURS = {"zone": "Europe/Berlin", "open": [{"days": ["MON"], "from": "09:00", "to": "17:00"}]}
SUNDAY = {"zone": "UTC", "open": [{"days": ["SUN"], "from": "00:00", "to": "01:00"}]}
LATER = "2031-01-01T00:00:00Z"
REFRESH = "dispatchEvent(new Event('online'))"
"""What brings a page up to date at once."""


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("changes")
    tokens = {name: token(directory, name, ["admin"]) for name in ("operator", "colleague")}
    with Service(directory) as service:
        yield Console(service, directory, tokens)


@pytest.fixture
def http(console: Console) -> Iterator[httpx.Client]:
    with console.api() as opened:
        yield opened


def configure(http: httpx.Client, name: str, **members: Any) -> None:
    answer = http.post("/admin/rate-limit/config", json={"configName": name, **members})
    assert answer.status_code == 200, answer.text


def put_task(http: httpx.Client, name: str, **members: Any) -> None:
    answer = http.put(f"/admin/periodic/{name}", json={"itemType": "PAYMENT", **members})
    assert answer.status_code == 200, answer.text


class Held:
    """Calls that match a pattern wait until they are let go."""

    def __init__(self, page: Page, pattern: str, method: str) -> None:
        self.routes: list[Route] = []
        self._page, self._pattern, self._method = page, pattern, method
        page.route(pattern, self._hold)

    def _hold(self, route: Route) -> None:
        if route.request.method == self._method:
            self.routes.append(route)
        else:
            route.continue_()

    def wait(self) -> None:
        until(lambda: self._page.evaluate("true") and self.routes)

    def let_go(self) -> None:
        for route in self.routes:
            route.continue_()
        self._page.unroute(self._pattern, self._hold)


def test_pause_keeps_what_a_colleague_changed(page: Page, console: Console, http: httpx.Client) -> None:
    put_task(http, "nightly", cron="0 3 * * *", context={"v": 1})
    go(page, "#/periodic")
    pause = page.get_by_role("button", name="Pause nightly")
    expect(pause).to_be_visible()
    put_task(http, "nightly", cron="30 5 * * *", context={"v": 2})
    page.evaluate(REFRESH)
    expect(page.get_by_text("30 5 * * *")).to_be_visible()
    put_task(http, "nightly", cron="30 5 * * *", context={"v": 3})  # which no page shows
    pause.click()
    expect(page.get_by_role("button", name="Resume nightly")).to_be_visible()
    task = http.get("/admin/periodic/nightly").json()
    assert (task["cron"], task["context"], task["enabled"]) == ("30 5 * * *", {"v": 3}, False)


def test_an_element_that_is_kept_acts_as_the_newest_render_says(page: Page, console: Console) -> None:
    go(page, "#/search")
    pressed = page.evaluate("""async () => {
        const {button, form, h, update} = await import('./console/dom.js')
        const [region, pressed] = [h('div'), []]
        document.body.append(region)
        const render = (n, ...more) => update(
            region,
            h('p', {}, button('Go', () => pressed.push(n))),
            form(values => pressed.push(`${values.typed} ${n}`), h('input', {name: 'typed'}), h('button', {}, 'Send')),
            ...more,
        )
        render('old')
        const [go, send] = region.querySelectorAll('button')
        region.querySelector('input').value = 'kept'
        render('new')
        go.click()
        send.click()
        region.remove()
        return [region.contains(go), region.contains(send), pressed]
    }""")
    assert pressed == [True, True, ["new", "kept new"]]


def test_an_answer_whose_body_is_lost_is_no_answer(page: Page, console: Console) -> None:
    go(page, "#/search")
    thrown = page.evaluate("""async () => {
        const {call} = await import('./console/api.js')
        const whole = window.fetch
        const body = () => new ReadableStream({start: stream => stream.error(new TypeError('network error'))})
        window.fetch = async () => new Response(body(), {headers: {'content-type': 'application/json'}})
        const error = method => call(method, '/health').then(() => null, error => [error.message, error.isChange])
        try {
            return [await error('GET'), await error('PUT')]
        } finally {
            window.fetch = whole
        }
    }""")
    lost = "The service did not answer. The change may have been made: look before you press again."
    assert thrown == [["The service does not answer.", False], [lost, True]]


def test_new_never_replaces_what_exists(page: Page, console: Console, http: httpx.Client) -> None:
    configure(http, "bank", maxPerWindow=7, windowSize="PT1S", maxDelay="PT1H", calendar=HOURS)
    assert http.put("/admin/plans/vip", json={"rate": "1000/second"}).status_code == 200
    put_task(http, "eod", cron="0 16 * * MON-FRI", zone="Europe/Berlin", context={"a": 1})
    paths = ("/admin/rate-limit/config?name=bank", "/admin/plans/vip", "/admin/periodic/eod")
    before = [http.get(path).json() for path in paths]
    go(page, "#/configs/")
    page.get_by_label("Name").fill("bank")
    page.get_by_role("button", name="Create", exact=True).click()
    agree(page, "Create it")
    expect(page.locator("main").get_by_role("alert")).to_contain_text("bank exists")
    page.get_by_role("link", name="Open it").click()
    expect(page.get_by_role("heading", name="Change bank")).to_be_visible()
    page.goto("./#/limits/")
    page.get_by_label("Name").fill("vip")
    page.get_by_role("button", name="Create it").click()
    expect(page.locator("main").get_by_role("alert")).to_contain_text("vip exists")
    page.get_by_role("link", name="Open it").click()
    expect(page.get_by_role("heading", name="Change vip")).to_be_visible()
    page.goto("./#/periodic")
    page.get_by_label("Task name").fill("eod")
    page.get_by_label("Item type").fill("PAYMENT")
    page.get_by_label("Every").fill("PT15M")
    page.get_by_role("button", name="Create it").click()
    expect(page.get_by_role("dialog")).to_contain_text("0 16 * * MON-FRI Europe/Berlin")
    page.get_by_role("button", name="Leave it").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert [http.get(path).json() for path in paths] == before
    page.get_by_role("button", name="Create it").click()
    agree(page, "Replace it")
    until(lambda: page.evaluate("true") and http.get(paths[2]).json()["every"] == "PT15M")


def test_an_editor_never_undoes_the_change_of_a_colleague(page: Page, console: Console, http: httpx.Client) -> None:
    configure(http, "shared", maxPerWindow=100, windowSize="PT4S")
    plan = {"algorithm": "fixed_window", "limit": 10, "window": "PT1H"}
    assert http.put("/admin/plans/shared", json=plan).status_code == 200
    go(page, "#/configs/shared")
    page.get_by_label("Horizon").fill("PT2H")
    configure(http, "shared", maxPerWindow=500)
    page.get_by_role("button", name="Make it the active version").click()
    agree(page, "Change it")
    expect(page.locator("main").get_by_role("alert")).to_contain_text("shared was changed meanwhile")
    config = http.get("/admin/rate-limit/config?name=shared").json()
    assert (config["maxPerWindow"], config["maxDelay"]) == (500, None)
    page.get_by_role("button", name="Load the new one").click()
    expect(page.get_by_label("Limit")).to_have_value("500")
    configure(http, "shared", maxPerWindow=600)
    page.evaluate(REFRESH)  # which is enough to see that there is a new one
    expect(page.locator("main").get_by_role("alert")).to_contain_text("shared was changed meanwhile")
    page.get_by_role("button", name="Load the new one").click()
    expect(page.get_by_label("Limit")).to_have_value("600")
    page.get_by_label("Horizon").fill("PT2H")
    for _ in range(2):  # the editor knows its own version
        page.get_by_role("button", name="Make it the active version").click()
        agree(page, "Change it")
        expect(page.get_by_text("shared is changed.")).to_be_visible()
    config = http.get("/admin/rate-limit/config?name=shared").json()
    assert (config["maxPerWindow"], config["maxDelay"]) == (600, "PT2H")

    page.goto("./#/limits/shared")
    page.get_by_label("Limit", exact=True).fill("11")
    assert http.put("/admin/plans/shared", json=plan | {"limit": 99}).status_code == 200
    page.get_by_role("button", name="Change it").click()
    expect(page.locator("main").get_by_role("alert")).to_contain_text("shared was changed meanwhile")
    assert http.get("/admin/plans/shared").json()["limit"] == 99
    page.get_by_role("button", name="Load the new one").click()
    expect(page.get_by_label("Limit", exact=True)).to_have_value("99")
    for limit in (100, 101):  # its own change is no conflict
        page.get_by_label("Limit", exact=True).fill(str(limit))
        page.get_by_role("button", name="Change it").click()
        row = page.get_by_role("table", name="Plans").get_by_role("row").filter(has_text="shared")
        expect(row).to_contain_text(f"{limit} every")


def test_a_preview_tries_every_field_and_goes_with_the_next_change(
    page: Page, console: Console, http: httpx.Client
) -> None:
    configure(http, "tried", maxPerWindow=5, windowSize="PT4S", maxDelay="PT1H")
    go(page, "#/configs/tried")
    changed = page.get_by_role("table", name="The effect").get_by_role("row").nth(2).get_by_role("cell")
    page.get_by_label("Events").fill("10000")
    page.get_by_label("Requested for").fill("2031-01-01T00:00:00")
    at = page.evaluate("new Date('2031-01-01T00:00:00').toISOString()")
    asked = {"configName": "tried", "events": "10000", "at": at}
    changes: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("Horizon", "PT1S", {"maxDelay": "PT1S"}),
        ("Horizon", "", {"maxDelay": "null"}),
        ("Window", "PT8S", {"maxDelay": "null", "windowSize": "PT8S"}),
        (
            "Calendar",
            json.dumps(SUNDAY),
            {"maxDelay": "null", "windowSize": "PT8S", "calendar": json.dumps(SUNDAY)},
        ),
    )
    for label, text, change in changes:
        page.get_by_label(label, exact=True).fill(text)
        expect(changed).to_have_count(0)
        page.get_by_role("button", name="Preview").click()
        forecast = http.get("/api/v1/forecast", params=asked | change).json()
        shown = (changed.nth(2), changed.nth(5))
        expect(shown[1]).to_have_text(f"{forecast['refused']:,}")
        if change["maxDelay"] == "null":
            assert forecast["refused"] == 0  # the horizon of an hour refuses more than a half
            expect(shown[0]).to_have_text(f"{forecast['windowCount']:,}")


def test_a_replan_moves_what_was_previewed(page: Page, console: Console, http: httpx.Client) -> None:
    configure(http, "moved", maxPerWindow=5, windowSize="PT4S")
    events = [{"eventId": f"moved-{n}", "requestedTime": LATER} for n in range(20)]
    assert http.post("/api/v1/slots/batch", json={"configName": "moved", "events": events}).status_code == 200
    configure(http, "moved", maxPerWindow=10)
    go(page, "#/replan/moved")
    move = page.locator("main").get_by_role("button", name="Move them")
    page.get_by_role("button", name="Preview").click()
    expect(move).to_be_visible()
    configure(http, "moved", maxPerWindow=2)
    page.get_by_label("Direction").select_option("spread")
    expect(move).to_have_count(0)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Later, on average, by")).to_be_visible()
    move.click()
    expect(page.get_by_role("dialog")).to_contain_text("later")
    page.get_by_role("button", name="Leave it").click()
    page.get_by_label("Notice").fill("PT2M")
    expect(move).to_have_count(0)


def test_a_control_is_off_until_its_call_has_ended(page: Page, console: Console, http: httpx.Client) -> None:
    put_task(http, "twice", every="P1D")
    go(page, "#/periodic")
    run = page.get_by_role("button", name="Run twice now")
    held = Held(page, "**/admin/periodic/twice/trigger", "POST")
    run.click()
    agree(page, "Run it now")
    held.wait()
    put_task(http, "twice", every="P2D")
    put_task(http, "a-row-more", every="P1D")
    page.evaluate(REFRESH)
    expect(page.get_by_text("every P2D")).to_be_visible()
    expect(run).to_be_disabled()
    page.goto("./#/now")
    page.goto("./#/periodic")
    expect(run).to_be_disabled()
    expect(page.get_by_role("button", name="Run a-row-more now")).to_be_enabled()
    held.let_go()
    expect(run).to_be_enabled()
    assert len(held.routes) == 1

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method) if request.url.endswith("/twice") else None)
    place = page.get_by_role("button", name="Pause twice").bounding_box()
    assert place is not None
    page.mouse.click(place["x"] + 5, place["y"] + 5)
    expect(page.get_by_role("button", name="Resume twice")).to_be_visible()
    page.mouse.down(click_count=2)  # the second click of a double click meets another button
    page.mouse.up(click_count=2)
    page.evaluate("true")
    assert asked == ["GET", "PUT"]

    page.goto("./#/limits/")
    held = Held(page, "**/admin/plans/once", "PUT")
    page.get_by_label("Name").fill("once")
    create = page.get_by_role("button", name="Create it")
    create.dblclick()
    held.wait()
    expect(create).to_be_disabled()
    page.get_by_label("Name").press("Enter")
    held.let_go()
    expect(page.get_by_role("heading", name="Change once")).to_be_visible()
    assert len(held.routes) == 1


def test_a_session_that_ends_keeps_what_was_typed_for_its_own_user_alone(
    own_page: Page, console: Console, http: httpx.Client
) -> None:
    configure(http, "typed", maxPerWindow=5, windowSize="PT4S")
    log_in(own_page, console)
    go(own_page, "#/configs/typed")
    horizon = own_page.get_by_label("Horizon")
    change = own_page.get_by_role("button", name="Make it the active version")
    horizon.fill("PT2H")
    own_page.get_by_label("Calendar", exact=True).fill(json.dumps(SUNDAY))
    own_page.context.clear_cookies()  # as when it has expired
    change.click()
    agree(own_page, "Change it")
    expect(own_page.get_by_label("Token")).to_be_visible()
    expect(own_page.locator("main")).not_to_contain_text("typed")
    enter_token(own_page, console)
    expect(horizon).to_have_value("PT2H")
    change.click()
    agree(own_page, "Change it")
    expect(own_page.get_by_text("typed is changed.")).to_be_visible()
    config = http.get("/admin/rate-limit/config?name=typed").json()
    assert (config["maxDelay"], config["calendar"]["zone"]) == ("PT2H", "UTC")

    horizon.fill("PT3H")
    own_page.context.clear_cookies()
    own_page.evaluate(REFRESH)  # which notices it, too
    enter_token(own_page, console, "colleague")
    expect(horizon).to_have_value("PT2H")
    horizon.fill("PT3H")
    own_page.get_by_role("button", name="Log out").click()
    enter_token(own_page, console, "colleague")
    expect(horizon).to_have_value("PT2H")


def test_a_network_that_is_lost_meanwhile_keeps_what_was_typed(
    own_page: Page, console: Console, http: httpx.Client
) -> None:
    configure(http, "offline", maxPerWindow=5, windowSize="PT4S")
    log_in(own_page, console)
    go(own_page, "#/configs/offline")
    horizon = own_page.get_by_label("Horizon")
    change = own_page.get_by_role("button", name="Make it the active version")
    horizon.fill("PT2H")
    own_page.context.set_offline(True)
    expect(own_page.locator("#banner")).to_contain_text("does not answer")
    own_page.get_by_label("Limit", exact=True).fill("7")
    change.click()
    agree(own_page, "Change it")
    expect(own_page.locator("#banner")).to_contain_text("look before you press again")
    own_page.context.set_offline(False)
    expect(own_page.locator("#pulse")).to_contain_text("live as of")
    assert (horizon.input_value(), own_page.get_by_label("Limit", exact=True).input_value()) == ("PT2H", "7")
    change.click()
    agree(own_page, "Change it")
    expect(own_page.get_by_text("offline is changed.")).to_be_visible()
    config = http.get("/admin/rate-limit/config?name=offline").json()
    assert (config["maxPerWindow"], config["maxDelay"]) == (7, "PT2H")


def test_a_lost_answer_says_that_the_change_may_have_been_made(
    own_page: Page, console: Console, http: httpx.Client
) -> None:
    def lose(route: Route) -> None:
        route.fetch()
        route.abort("connectionreset")

    put_task(http, "lost", every="P1D")
    log_in(own_page, console)
    own_page.clock.install()
    own_page.goto("./#/periodic")
    own_page.route("**/admin/periodic/lost/trigger", lose)
    own_page.get_by_role("button", name="Run lost now").dispatch_event("click")
    own_page.get_by_role("dialog").get_by_role("button", name="Run it now").dispatch_event("click")
    banner = own_page.locator("#banner")
    expect(banner).to_contain_text("may have been made: look before you press again")
    expect(banner).not_to_contain_text("Trying again")
    assert "lost@trigger" in http.get("/admin/dispatch/PAYMENT/items?prefix=lost").text
    own_page.evaluate(REFRESH)
    expect(own_page.locator("#pulse")).to_contain_text("as of")
    expect(banner).to_be_visible()  # long enough to be read
    own_page.clock.run_for(20_000)
    own_page.evaluate(REFRESH)
    expect(banner).to_be_hidden()
