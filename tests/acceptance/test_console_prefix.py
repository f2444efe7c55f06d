"""The console in a browser under a prefix: behind a proxy that takes it off, and on a server that has it as root path.
Every page opens, and buttons do what they say."""

from __future__ import annotations

import asyncio
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Response, Route, expect

from tests.acceptance.console_browser import Console, browser, chromium, token, window
from tests.acceptance.console_browser import same_page as page
from tests.acceptance.console_controls import FIND
from tests.acceptance.console_data import queue_jobs
from tests.acceptance.service import Service, environment, until
from tests.acceptance.test_console_buttons import JOBS, ONCE, ROUTES, Press, check, press, show, stock

__all__ = ["browser", "chromium", "page", "window"]

PREFIX = "/pace"
OTHER_PAGES = ("Metrics", "Health", "API")
"""What the console links to that is not a page of its own."""
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade"}
CHANGES = (
    ("slots/default/e-1", "Cancel this slot"),
    ("configs", "Create"),
    ("configs/default", "Make it the active version"),
    ("limits", "Acquire"),
    ("limits/tiny", "Delete it"),
    ("dispatch/JOB", "Stop dispatching JOB"),
    ("dispatch/JOB/item/a-dead", "Requeue"),
    ("dispatch/JOB/item/a-dead", "Discard"),
    ("payments/pay-1", "Cancel this payment"),
    ("now", "Log out"),
)


@contextmanager
def stripping_proxy(target: str) -> Iterator[str]:
    """A proxy that serves `target` under the prefix, and nothing else; yields its address."""
    place = urlsplit(target).netloc

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404, "not under the prefix")
                return
            sent = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            with closing(http.client.HTTPConnection(place, timeout=60)) as upstream:
                upstream.request(self.command, self.path.removeprefix(PREFIX), body or None, sent)
                answer = upstream.getresponse()
                content = answer.read()
            with suppress(ConnectionError):  # the browser went to another page
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP_BY_HOP | {"content-length"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def started(directory: Path, root_path: bool) -> Iterator[str]:
    """The service by its own command, or under any ASGI server with a root path; yields its address."""
    if not root_path:
        with Service(directory) as service:
            yield service.url
        return
    with (directory / "service.log").open("a") as log:
        application = ["paceline.server.http.app:from_environment", "--factory"]
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", *application, "--port", "0", "--root-path", PREFIX],
            cwd=directory,
            env=environment(),
            stdout=log,
            stderr=log,
        )
    running = re.compile(r"Uvicorn running on (http://127\.0\.0\.1:\d+)")
    try:
        yield until(lambda: running.search((directory / "service.log").read_text()), within=120)[1]
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module", params=["proxy", "proxy and root path"])
def console(
    request: pytest.FixtureRequest, chromium: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("prefix")
    secret = token(directory, "operator", ["admin"])
    asyncio.run(queue_jobs(f"sqlite:///{directory / 'paceline.db'}", JOBS))
    with started(directory, request.param != "proxy") as url, stripping_proxy(url) as proxy:
        service = Service(directory)
        service.url = f"{proxy}{PREFIX}/"
        yield Console(service, directory, {"operator": secret})


def serve_one_path(route: Route) -> None:
    """Serves the OpenAPI document with the first of its paths: drawing all of them takes the browser many seconds."""
    answer = route.fetch()
    document = answer.json()
    document["paths"] = dict(list(document["paths"].items())[:1])
    route.fulfill(response=answer, json=document)


def test_every_page_opens(page: Page, console: Console) -> None:
    failed: list[tuple[str, int]] = []

    def note(response: Response) -> None:
        if response.status >= 400:
            failed.append((response.url, response.status))

    with console.api() as http:
        stock(console, http)
    page.on("response", note)
    for route in ROUTES:
        show(page, route)
        expect(page.locator("main h1, main h2").first).to_be_visible()
        assert page.url.startswith(console.service.url)
    links = [page.get_by_role("link", name=name, exact=True).evaluate("link => link.href") for name in OTHER_PAGES]
    page.route(f"{console.service.url}openapi.json", serve_one_path)
    for link in links:
        page.goto(link)
    assert page.url == f"{console.service.url}docs"
    expect(page.locator(".opblock").first).to_be_visible()
    page.unroute_all()
    page.remove_listener("response", note)
    assert failed == []


@pytest.mark.parametrize(("route", "button"), CHANGES)
def test_buttons_do_what_they_say(page: Page, console: Console, route: str, button: str) -> None:
    with console.api() as http:
        stock(console, http)
    show(page, route)
    found = page.evaluate(FIND, ONCE)
    change = Press(
        route, next(control for control in found if control.startswith("BUTTON") and control.endswith(f"|{button}"))
    )
    check(console, change, press(page, change, ONCE))
