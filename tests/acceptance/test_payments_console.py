"""Why the bank can't be reached, where an operator looks first: on the console's pages of a payment and of its feed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.console_browser import Console, browser, chromium, log_in, page, token
from tests.acceptance.service import Service, until
from tests.faults.payment_stack import HEADER

__all__ = ["browser", "chromium", "page"]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """Its bank's address is one where nothing listens."""
    directory = tmp_path_factory.mktemp("console")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"PACELINE_PAYMENTS_DOWNSTREAM_URL": f"http://127.0.0.1:{port}"}
    tokens = {"operator": token(directory, "operator", ["admin"])}
    with Service(directory, **variables) as service:
        yield Console(service, directory, tokens)


def test_the_reason_is_on_the_payment_and_on_its_feed(page: Page, console: Console) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = f"p1,10.00,EUR,Payer,DE89370400440532013000,Payee,GB29NWBK60161331926819,{at}\n"
    with console.api() as http:
        feed = http.post("/api/v1/feeds", content=HEADER + line, headers={"Content-Type": "text/csv"}).json()["feedId"]
        until(lambda: "refuses connections" in (http.get("/api/v1/payments/p1").json()["reason"] or ""), within=60)
    log_in(page, console)
    for path in ("payments/p1", f"feeds/{feed}"):
        page.goto(f"/#/{path}")
        expect(page.get_by_text("refuses connections: nothing listens there")).to_be_visible()
