"""Every button, link, choice and box of every page of the console is pressed in a browser, with 100,000 slots, 5,000
items and 200 dead letters, and with no data. Each one must do something: make a call, or change what is shown; and what
it is to change has changed in the API."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.console_browser import (
    LOOKS,
    Console,
    Look,
    browser,
    chromium,
    log_in,
    open_page,
    seen_in,
    token,
    window,
)
from tests.acceptance.console_browser import same_page as page
from tests.acceptance.console_controls import (
    EMPTY,
    FIND,
    HAS_CHANGED,
    OPEN,
    PAUSE,
    PRESS_IF_THERE,
    UNREACHABLE,
    control_of,
)
from tests.acceptance.console_data import fill_up
from tests.acceptance.console_traffic import quiet, traffic_of
from tests.acceptance.service import Service, until
from tests.effort import is_thorough

__all__ = ["browser", "chromium", "page", "window"]

SOON = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:00Z")
PARTY = {"name": "Alice", "iban": "DE89370400440532013000"}
ERRORS = {"a-dead": "boom 1", "b-dead": "boom 2 and more"}
STATUSES = {
    "a-dead": "DEAD_LETTER",
    "b-dead": "DEAD_LETTER",
    "c-done": "COMPLETED",
    "d-off": "CANCELLED",
    "e-unknown": "UNKNOWN",
}
MORE_THAN_A_PAGE = 60
JOBS = [*STATUSES, *(f"m-{number:02}" for number in range(MORE_THAN_A_PAGE))]
TYPED = {
    "Key": "user:1",
    "Plans": "tiny",
    "Payment id": "pay-1",
    "Event id": "e-1",
    "Name": "made-by-hand",
    "Task name": "made-by-hand",
    "Item type": "JOB",
    "Every": "PT1H",
}
"""What is typed into empty fields, by their labels."""

ONCE = "body :is(button, a[href], summary, select, input[type=checkbox])"
IN_PAGE = ONCE.replace("body", "main")


BUTTONS = "main :is(button:not([type=submit]), summary)"
"""What is pressed where there is no data: nothing is typed there, so nothing can be sent."""
EMPTY_ROUTES = (
    *("charts", "slots", "configs", "replan", "limits", "dispatch", "dispatch/PAYMENT", "periodic", "workers"),
    *("downstreams", "payments", "feeds", "notifications", "messages", "audit"),
)


class Press(NamedTuple):
    """A control, as it is found again, and where."""

    route: str
    control: str

    @property
    def text(self) -> str:
        return self.control.split("|", 3)[3]


ROUTES = (
    "now",
    "charts",
    "slots",
    "slots/default/e-1",
    "configs",
    "configs/default",
    "replan/default",
    "limits",
    "limits/tiny",
    "dispatch",
    "dispatch/JOB",
    "dispatch/JOB?status=DEAD_LETTER",
    "dispatch/JOB/item/a-dead",
    "dispatch/JOB/item/e-unknown",
    "dispatch/JOB/item/m-00",
    "dispatch/JOB/lanes",
    "dispatch/PAYMENT/item/pay-2",
    "periodic",
    "workers",
    "downstreams",
    "payments",
    "payments/pay-1",
    "feeds",
    "feeds/FEED",
    "messages",
    "notifications",
    "search?q=pay",
    "audit",
)


def _status(http: httpx.Client, item: str) -> str:
    return str(http.get(f"/admin/dispatch/JOB/items/{item}").json()["status"])


def _letters(http: httpx.Client) -> list[str]:
    return [letter["messageId"] for letter in http.get("/admin/sms/dead-letters").json()["deadLetters"]]


def _feed(http: httpx.Client) -> dict[str, str]:
    feed: dict[str, str] = http.get("/api/v1/feeds").json()["feeds"][0]
    return feed


def _versions(http: httpx.Client) -> int:
    return len(http.get("/admin/rate-limit/config/history?name=default").json()["versions"])


EFFECTS: dict[str, Callable[[httpx.Client], bool]] = {
    r"dispatch/JOB/item/a-dead\|Requeue": lambda http: _status(http, "a-dead") == "READY",
    r"dispatch/JOB/item/a-dead\|Discard": lambda http: _status(http, "a-dead") == "CANCELLED",
    r"dispatch/JOB/item/e-unknown\|Resolve": lambda http: _status(http, "e-unknown") == "COMPLETED",
    r"dispatch/JOB/item/e-unknown\|Cancel": lambda http: _status(http, "e-unknown") == "CANCELLED",
    r"dispatch/JOB/item/m-00\|Cancel": lambda http: _status(http, "m-00") == "CANCELLED",
    r"dispatch/JOB/item/m-00\|Reschedule": lambda http: (
        http.get("/admin/dispatch/JOB/items/m-00").json()["executeAt"].startswith("2031-05-01")
    ),
    r"dispatch/PAYMENT/item/pay-2\|Reschedule": lambda http: (
        http.get("/admin/dispatch/PAYMENT/items/pay-2").json()["priority"] == 3
    ),
    r"dispatch/PAYMENT/item/pay-2\|Cancel": lambda http: (
        http.get("/admin/dispatch/PAYMENT/items/pay-2").json()["status"] == "CANCELLED"
    ),
    r"dispatch/JOB.*\|Requeue the 1 that failed with boom \*": lambda http: (
        (_status(http, "a-dead"), _status(http, "b-dead")) == ("READY", "DEAD_LETTER")
    ),
    r"dispatch/JOB.*\|Discard the 1 that failed with boom \*": lambda http: (
        (_status(http, "a-dead"), _status(http, "b-dead")) == ("CANCELLED", "DEAD_LETTER")
    ),
    r"dispatch/JOB.*\|Requeue the 1 that failed with boom \* and more": lambda http: _status(http, "b-dead") == "READY",
    r"dispatch/JOB.*\|Discard the 1 that failed with boom \* and more": lambda http: (
        _status(http, "b-dead") == "CANCELLED"
    ),
    r"dispatch.*\|Stop dispatching.*": lambda http: (
        not all(queue["enabled"] for queue in http.get("/admin/dispatch").json()["itemTypes"])
    ),
    r"slots/.*\|Cancel this slot": lambda http: http.get("/api/v1/slots/e-1").status_code == 404,
    r"payments/.*\|Cancel this payment": lambda http: (
        http.get("/api/v1/payments/pay-1").json()["status"] == "CANCELLED"
    ),
    r"configs\|Create": lambda http: http.get("/admin/rate-limit/config?name=made-by-hand").status_code == 200,
    r"configs/default\|Make it the active version": lambda http: _versions(http) > 1,
    r"configs/default\|Preview": lambda http: True,  # which asks what a change would do, and makes none
    r"configs/default\|Back to .*": lambda http: True,  # which is tried first, too
    r"replan/default\|Preview": lambda http: True,  # a dry run; there is nothing to move
    r"feeds/.*\|Cancel this feed": lambda http: _feed(http)["state"] == "CANCELLED",
    r"limits\|Create it": lambda http: http.get("/admin/plans/made-by-hand").status_code == 200,
    r"limits/tiny\|Change it": lambda http: http.get("/admin/plans/tiny").status_code == 200,
    r"limits/tiny\|Delete it": lambda http: http.get("/admin/plans/tiny").status_code == 404,
    r"limits.*\|(Peek|Acquire|Refund|Reset)": lambda http: True,
    r"notifications\|Send message l-one again": lambda http: "l-one" not in _letters(http),
    r"notifications\|Drop message l-one": lambda http: "l-one" not in _letters(http) and "l-two" in _letters(http),
    r"notifications\|(Send all dead letters again|Drop all dead letters)": lambda http: _letters(http) == [],
    r"periodic\|Create it": lambda http: http.get("/admin/periodic/made-by-hand").status_code == 200,
    r"periodic\|Pause report": lambda http: not http.get("/admin/periodic/report").json()["enabled"],
    r"periodic\|Delete report": lambda http: http.get("/admin/periodic/report").status_code == 404,
    r"periodic\|Run report now": lambda http: (
        "report@trigger" in http.get("/admin/dispatch/JOB/items?prefix=report").text
    ),
    r"now\|Log out": lambda http: True,
}
"""What is true of the API after a press that makes more than a GET. There is an entry for each such control."""


@pytest.fixture(scope="module")
def console(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("buttons")
    tokens = {"operator": token(directory, "operator", ["admin"]), "viewer": token(directory, "viewer", ["view"])}
    fill_up(directory / "paceline.db", JOBS, dead=len(ERRORS))
    with Service(directory) as service:
        made = Console(service, directory, tokens)
        with made.api() as http:
            stock(made, http)
            for number in range(101):  # more than a page of the audit
                http.post("/admin/rate-limit/cache/flush", headers={"X-Request-ID": f"flush-{number}"})
            quota = {"userId": 7, "rateLimit": 2, "timeWindow": 5}
            assert http.post("/api/config", json=quota).status_code == 200
            for _ in range(3):
                http.post("/api/send", json={"userId": 7, "message": "hello"})
        yield made


def stock(console: Console, http: httpx.Client) -> None:
    """Makes everything that a press may have changed what it was."""
    limit = {"configName": "default", "maxPerWindow": 5, "windowSize": "PT4S"}
    if http.get("/admin/rate-limit/config?name=default").json()["maxPerWindow"] != 5:
        assert http.post("/admin/rate-limit/config", json=limit).status_code == 200
    plan = {"algorithm": "fixed_window", "limit": 1000, "window": "PT1H"}
    if http.get("/admin/plans/tiny").status_code == 404:
        assert http.put("/admin/plans/tiny", json=plan).status_code == 200
    periodic = {"itemType": "JOB", "cron": "0 16 1 1 *", "zone": "Europe/Berlin", "enabled": True}
    assert http.put("/admin/periodic/report", json=periodic).status_code == 200
    assert http.post("/api/v1/slots", json={"eventId": "e-1", "requestedTime": SOON}).status_code == 200
    payment = {
        "amount": "1.00",
        "currency": "EUR",
        "payer": PARTY,
        "payee": PARTY | {"iban": "GB29NWBK60161331926819"},
        "executeAt": SOON,
    }
    for name in ("pay-1", "pay-2"):
        assert http.post("/api/v1/payments", json={"paymentId": name, **payment}).status_code == 202
    for queue in http.get("/admin/dispatch").json()["itemTypes"]:
        if not queue["enabled"]:
            http.patch(f"/admin/dispatch/{queue['itemType']}", json={"enabled": True})
    http.delete("/admin/periodic/made-by-hand")
    http.delete("/admin/plans/made-by-hand")
    feed = json.dumps({"paymentId": "fed-1", **payment})
    if http.get("/api/v1/feeds/FEED").status_code == 404:
        sent = http.post("/api/v1/feeds", content=feed, headers={"Content-Type": "application/x-ndjson"})
        assert sent.json()["accepted"] == 1
    with sqlite3.connect(console.directory / "paceline.db", timeout=30) as database:
        for table in ("paceline_slot_policy", "paceline_slot_config"):
            database.execute(f"DELETE FROM {table} WHERE name = 'made-by-hand'")
        database.execute("UPDATE paceline_feed SET feed_id = 'FEED', state = 'DONE'")
        database.execute(
            "UPDATE paceline_dispatch_queue SET queue_status = 'READY'"
            " WHERE item_type = 'JOB' AND queue_status != 'READY' AND item_id NOT LIKE 'o-dead-%'"
        )
        for name, status in STATUSES.items():
            change = "UPDATE paceline_dispatch_queue SET queue_status = ? WHERE item_type = 'JOB' AND item_id = ?"
            database.execute(change, (status, name))
        database.execute(
            "UPDATE paceline_dispatch_queue SET unknown_since = created_at"
            " WHERE item_type = 'JOB' AND item_id = 'e-unknown'"
        )
        database.execute(
            "INSERT OR IGNORE INTO paceline_dispatch_attempt (item_type, item_id, claim_epoch, attempt_number,"
            " ended_at, outcome, error, traceback)"
            " VALUES ('JOB', 'e-unknown', 1, 1, '2026-01-01 00:00:00.000000', 'unknown',"
            " 'unknown: connection reset', 'Traceback (most recent call last): here')"
        )
        for name, error in ERRORS.items():
            change = "UPDATE paceline_dispatch_queue SET last_error = ? WHERE item_type = 'JOB' AND item_id = ?"
            database.execute(change, (error, name))
        for name in ("l-one", "l-two"):
            letter = {"messageId": name, "userId": 7, "message": "hello"}
            database.execute(
                "INSERT OR IGNORE INTO paceline_notification_dead_letter (letter_id, message_id, message_key,"
                " message_value, sha256, whole, reason, attempts, dead_at)"
                " VALUES (?, ?, '7', ?, '', 1, 'refused', 1, '2026-01-01 00:00:00.000000')",
                (name, name, json.dumps(json.dumps(letter))),
            )
    database.close()
    assert http.post("/admin/rate-limit/cache/flush").status_code == 200


def show(page: Page, route: str) -> None:
    """Opens a page afresh, waits for its data, and stops it from refreshing itself."""
    with quiet(page):
        page.evaluate(f"route => ({OPEN})(route).then(() => {PAUSE})", route)
    for label in TYPED.keys() & set(page.evaluate(EMPTY)):
        for field in page.get_by_label(label, exact=True).and_(page.locator("input")).all():
            if field.input_value() == "" and field.is_editable():
                field.fill(TYPED[label])


def press(page: Page, expected: Press, scope: str) -> list[tuple[str, str, int]]:
    """Presses a control, and confirms if prompted; returns the calls that were made: method, path, status."""
    traffic = traffic_of(page)
    visible = control_of(page, expected.control, scope)
    if expected.control.startswith("SELECT"):
        other = "select => [...select.options].find(each => !each.selected).value"
        visible.select_option(visible.evaluate(other))
    else:
        visible.click()
    here = f"#/{expected.route}" == expected.control.split("|")[2].rstrip("/")
    try:
        until(lambda: here or traffic.asked or page.evaluate(HAS_CHANGED), within=20)
    except AssertionError:
        pytest.fail(f"{expected} does nothing")
    if any("/preview?" in request.url for request in traffic.asked):
        page.locator("#dialog[open]").wait_for()  # which says how many
    if page.locator("#dialog[open]").count():
        assert not traffic.has_changed, f"{expected} does not wait for an answer"
        for kind, text in (("datetime-local", "2031-05-01T12:00:00"), ("number", "3")):
            for field in page.locator(f"#dialog input[type={kind}]").all():
                field.fill(text)
        page.locator("#dialog button").last.click()
        until(lambda: page.evaluate("true") and traffic.has_changed)
    # A change may follow a GET.
    until(
        lambda: (
            page.evaluate("true")
            and len(traffic.made) >= len(traffic.asked)
            and (traffic.has_changed or effect_of(expected) is None)
        )
    )
    return traffic.made.copy()


def effect_of(expected: Press) -> str | None:
    """The key of what it changes in the API."""
    name = f"{expected.route}|{expected.text}"
    return next((pattern for pattern in EFFECTS if re.fullmatch(pattern, name)), None)


def check(console: Console, expected: Press, calls: list[tuple[str, str, int]]) -> None:
    name = f"{expected.route}|{expected.text}"
    changes = [call for call in calls if call[0] != "GET"]
    pattern = effect_of(expected)
    effect = None if pattern is None else EFFECTS[pattern]
    assert all(status < 300 for _, _, status in changes), (name, changes)
    assert bool(changes) == (effect is not None), f"{name} makes these calls: {changes}; EFFECTS says what they change"
    if effect is not None:
        with console.api() as http:
            assert effect(http), name


def ends_something(control: str) -> bool:
    """Whether there is nothing more to press afterwards."""
    return control.endswith(("|Log out", "|Cancel"))


ALIKE = (
    *(r"A\|\|.*JOB/item/m-(?!00)", r"INPUT\|checkbox\|mark m-(?!00)"),  # as m-00
    r"A\|\|.*/bulk-[0-9]",  # a hundred thousand slots
    *(".*l-two", ".*o-dead-", r".*timeout after \* s"),  # as l-one, a-dead, and those that failed with boom
    *(
        r"A\|\|#/(slots|payments|dispatch/PAYMENT/item)/.*pay-2\|pay-2",
        r"A\|\|#/slots/.*payment:(fed-1|pay-2)",
    ),  # as pay-1
)
"""Rows of a list that are as others of it, by their controls."""
ELSEWHERE = (
    r".*Skip to the content",  # it moves the focus only: test_console looks at that
    r".*\|(API|Metrics|Health)$",  # other pages than the console's
    r".*\|Status report \(pain\.002\)$",  # a file
)


LOOKED_AT = {"downstreams"}
"""Pages where there is nothing to press."""


PRESSED_IN = LOOKS if is_thorough() else [Look("light", 1440), Look("dark", 390)]
"""To press everything takes half a minute for each look."""


@pytest.fixture(scope="module")
def pressed() -> set[tuple[Look, str, str, str | None]]:
    """What was pressed, by how the page looked, by its page, and by what it changes: a part of a page, such as the
    table of the queues, stands on several addresses. The thorough check presses it on each of them."""
    return set()


@pytest.mark.parametrize("look", PRESSED_IN, ids=lambda look: f"{look.theme}-{look.width}")
@pytest.mark.parametrize("route", ROUTES)
def test_every_control_of_a_page_does_something(
    page: Page, console: Console, route: str, look: Look, pressed: set[tuple[Look, str, str, str | None]]
) -> None:
    scope = ONCE if route == "now" else IN_PAGE
    with console.api() as http, seen_in(page, look):
        stock(console, http)
        show(page, route)
        found: list[str] = sorted(
            set(page.evaluate(FIND, scope)), key=lambda control: (ends_something(control), control)
        )
        assert bool(found) == (route not in LOOKED_AT), route
        is_shown = True
        for control in found:
            if any(re.match(pattern, control) for pattern in (*ALIKE, *ELSEWHERE)):
                continue
            expected = Press(route, control)
            same = (look, re.split("[/?]", route)[0], control, effect_of(expected))
            if same in pressed and not is_thorough():
                continue
            pressed.add(same)
            if not is_shown:
                show(page, route)
            is_shown = False
            calls = press(page, expected, scope)
            check(console, expected, calls)
            if any(method != "GET" for method, _, _ in calls):
                stock(console, http)


@pytest.mark.parametrize("route", ROUTES)
def test_every_control_is_within_reach_however_one_looks(page: Page, console: Console, route: str) -> None:
    """In both themes and at each width: on top, whole, inside the window, and reached by keys."""
    with console.api() as http:
        stock(console, http)
    show(page, route)
    problems: list[str] = []
    for look in LOOKS:
        with seen_in(page, look):
            found = page.evaluate(UNREACHABLE, ONCE)
            problems += [f"{look.theme} {look.width}: {problem}" for problem in found if "Skip to" not in problem]
    assert problems == []


def test_every_button_of_a_page_without_data_works(browser: Browser, service: Service) -> None:
    context = browser.new_context(base_url=service.url)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto("/")
    for route in EMPTY_ROUTES:
        show(page, route)
        for number, control in enumerate(sorted(set(page.evaluate(FIND, BUTTONS)))):
            if number:
                show(page, route)
            with quiet(page):
                control_of(page, control, BUTTONS).click(force=True, no_wait_after=True)
            if page.locator("#dialog[open]").count():
                page.get_by_role("button", name="Leave it").click()
            assert "failed" not in page.locator("#banner").inner_text(), (route, control)
    assert wrong == []
    context.close()


@pytest.mark.parametrize("route", ["configs/default", "limits/tiny", "dispatch/JOB?status=DEAD_LETTER", "periodic"])
def test_whoever_may_only_look_finds_no_button_that_is_refused(
    viewers_page: Page, console: Console, route: str
) -> None:
    with console.api() as http:
        stock(console, http)
    show(viewers_page, route)
    for box in viewers_page.locator("main tbody input[type=checkbox]").all()[:1]:
        box.check()
    expect(viewers_page.locator("main .locked button").first).to_be_disabled()
    traffic = traffic_of(viewers_page)
    for control in sorted(set(viewers_page.evaluate(FIND, "main button"))):
        with quiet(viewers_page):
            viewers_page.evaluate(PRESS_IF_THERE, ["main button", control])
        dialog = viewers_page.locator("#dialog[open] button")
        if dialog.count():
            with quiet(viewers_page):
                dialog.last.click()
        assert [call for call in traffic.made if call[2] == 403] == [], control
        traffic.forget()


@pytest.fixture(scope="module")
def viewers_page(browser: Browser, console: Console) -> Iterator[Page]:
    opened, wrong = open_page(browser, console)
    log_in(opened, console, "viewer")
    yield opened
    opened.context.close()
    assert wrong == [], wrong


@pytest.mark.parametrize(("verb", "becomes"), [("Requeue", "READY"), ("Discard", "CANCELLED")])
def test_marked_items_are_moved(page: Page, console: Console, verb: str, becomes: str) -> None:
    with console.api() as http:
        stock(console, http)
        show(page, "dispatch/JOB/DEAD_LETTER")  # an older form of the address
        page.get_by_label("Mark a-dead").check()
        page.get_by_role("button", name=f"{verb} 1 item").click()
        page.get_by_role("dialog").get_by_role("button", name=verb).click()
        until(lambda: page.evaluate("true") and _status(http, "a-dead") == becomes)
        assert _status(http, "b-dead") == "DEAD_LETTER"


def test_an_item_that_is_unknown_shows_its_attempts_and_is_resolved(page: Page, console: Console) -> None:
    with console.api() as http:
        stock(console, http)
        show(page, "dispatch/JOB/item/e-unknown")
        attempts = page.get_by_role("table", name="Attempts")
        expect(attempts).to_contain_text("unknown: connection reset")
        page.get_by_text("Traceback of attempt 1").click()
        expect(page.get_by_role("region", name="Traceback of attempt 1")).to_have_text(
            "Traceback (most recent call last): here"
        )
        page.get_by_role("button", name="Resolve").click()
        page.get_by_label("What became of it").select_option("refused")
        page.get_by_label("How you know").fill("returned by the bank")
        page.get_by_role("dialog").get_by_role("button", name="Resolve").click()
        until(lambda: page.evaluate("true") and _status(http, "e-unknown") == "DEAD_LETTER")
        item = http.get("/admin/dispatch/JOB/items/e-unknown").json()
        assert (item["lastError"], item["unknownSince"]) == ("returned by the bank", None)


def test_nothing_is_done_if_the_user_does_not_agree(page: Page, console: Console) -> None:
    with console.api() as http:
        stock(console, http)
        show(page, "dispatch/JOB/item/a-dead")
        for verb in ("Requeue", "Discard"):
            page.get_by_role("button", name=verb).click()
            page.get_by_role("button", name="Leave it").click()
            expect(page.get_by_role("dialog")).to_be_hidden()
        assert _status(http, "a-dead") == "DEAD_LETTER"


def test_every_state_of_a_list_is_in_the_address(page: Page, console: Console) -> None:
    with console.api() as http:
        stock(console, http)
    show(page, "dispatch/JOB")
    page.get_by_label("Status").focus()
    page.get_by_label("Status").select_option("READY")
    expect(page).to_have_url(re.compile(r"#/dispatch/JOB\?status=READY$"))
    expect(page.get_by_label("Status")).to_be_focused()
    page.get_by_label("Id begins with").fill("m-")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"{MORE_THAN_A_PAGE} items match.")).to_be_visible()
    page.get_by_role("columnheader", name="Item").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="Item")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("link", name="Next page").click()
    rows = page.get_by_role("table", name="Items of JOB").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("m-09")
    expect(rows).to_have_count(MORE_THAN_A_PAGE - 50 + 1)
    page.reload()
    expect(rows.nth(1)).to_contain_text("m-09")
    expect(page.get_by_label("Id begins with")).to_have_value("m-")
    page.go_back()
    expect(rows.nth(1)).to_contain_text("m-59")
    page.get_by_role("link", name="Clear").click()
    expect(page.get_by_text("more than 50", exact=False)).to_have_count(0)
    expect(page).to_have_url(re.compile(r"#/dispatch/JOB\?sort=-id$"))


def test_all_that_match_are_changed_after_a_preview_and_recorded(page: Page, console: Console) -> None:
    with console.api() as http:
        stock(console, http)
        show(page, "dispatch/JOB?prefix=m-0")
        page.get_by_role("button", name="Select all 10 that match").click()
        expect(page.get_by_text("10 selected")).to_be_visible()
        page.get_by_role("button", name="Requeue all that match").click()
        expect(page.get_by_role("status")).to_contain_text("None of the 10 items that match can be requeued")
        page.get_by_role("button", name="Reschedule all that match").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading", name="Reschedule 10 items?")).to_be_visible()
        dialog.get_by_label("New lane").fill("slow")
        dialog.get_by_role("button", name="Reschedule").click()
        slow = "/admin/dispatch/JOB/items?lane=slow&total=true"
        until(lambda: page.evaluate("true") and http.get(slow).json()["total"] == 10)
        show(page, "dispatch/JOB?lane=slow")
        with sqlite3.connect(console.directory / "paceline.db", timeout=30) as database:
            database.execute("UPDATE paceline_dispatch_queue SET queue_status = 'COMPLETED' WHERE item_id = 'm-01'")
        page.get_by_role("button", name="Select all 10 that match").click()
        page.get_by_role("button", name="Cancel all that match").click()
        expect(dialog).to_contain_text("10 match; 1 of them can’t be cancelled")
        dialog.get_by_role("button", name="Leave it").click()
        assert _status(http, "m-00") == "READY"
        page.get_by_role("button", name="Cancel all that match").click()
        dialog.get_by_role("button", name="Cancel").click()
        until(lambda: page.evaluate("true") and _status(http, "m-00") == "CANCELLED")
        assert [_status(http, name) for name in ("m-01", "m-10")] == ["COMPLETED", "READY"]
        entry = http.get("/admin/audit?limit=1").json()[0]
        assert (entry["caller"], entry["path"]) == ("operator", "/admin/dispatch/JOB/cancel")
        assert '"lane":"slow"' in entry["detail"].replace(" ", "")
        stock(console, http)
