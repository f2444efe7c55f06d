"""The calls that a page of the console makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from playwright.sync_api import Page, Request, Response


class Traffic:
    """The calls of a page. It listens all the time: a listener that comes or goes is a message to the browser."""

    def __init__(self, page: Page) -> None:
        self.asked: list[Request] = []
        self.made: list[tuple[str, str, int]] = []
        self.waiting: set[Request] = set()
        page.on("request", self._begun)
        page.on("response", self._answered)
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._ended)

    def _begun(self, request: Request) -> None:
        self.asked.append(request)
        if request.resource_type != "eventsource":  # which stays open
            self.waiting.add(request)

    def _answered(self, response: Response) -> None:
        self.made.append((response.request.method, response.url, response.status))

    def _ended(self, request: Request) -> None:
        self.waiting.discard(request)

    def forget(self) -> None:
        self.asked.clear()
        self.made.clear()
        self.waiting.clear()

    @property
    def has_changed(self) -> bool:
        """Whether more than reading was asked for."""
        return any(request.method != "GET" for request in self.asked)


TRAFFIC: WeakKeyDictionary[Page, Traffic] = WeakKeyDictionary()


def traffic_of(page: Page) -> Traffic:
    """What a page calls from here on."""
    traffic = TRAFFIC.get(page) or TRAFFIC.setdefault(page, Traffic(page))
    traffic.forget()
    return traffic


@contextmanager
def quiet(page: Page) -> Iterator[None]:
    """Returns when all requests are answered and no more are made."""
    traffic = traffic_of(page)
    yield
    calm = 0
    while calm < 2:
        page.wait_for_timeout(20)
        calm = 0 if traffic.waiting else calm + 1
