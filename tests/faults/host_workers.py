"""Programs of several processes that share `host://`. Run by the tests:

    python -m tests.faults.host_workers SITE STORE-URL     a site of four workers, each with "20/minute"
    python -m tests.faults.host_workers charge STORE-URL   charges two plans together until it is killed
    python -m uvicorn --workers 4 tests.faults.host_workers:app     the same as a site, STORE-URL in HOST_STORE
    python -m gunicorn --workers 4 --preload "tests.faults.host_workers:wsgi()"     the same
    python -m granian --workers 4 --factory tests.faults.host_workers:app           the same

A site answers 200 or 429, with the process that answered in `X-Worker`. It prints its port when it listens.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from paceline import AsyncLimiter, Limiter, Plan

WORKERS = 4
RATE = "20/minute"
PAIR = [Plan("first", "1000000/day"), Plan("second", "1000000/day")]
Wsgi = Callable[..., Iterable[bytes]]


def app() -> Any:
    """For uvicorn's workers, each of which makes its own limiter."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    limiter = AsyncLimiter(os.environ["HOST_STORE"])

    async def answer(request: Request) -> PlainTextResponse:
        decision = await limiter.acquire("visitor", RATE)
        return PlainTextResponse("", 200 if decision else 429, {"X-Worker": str(os.getpid())})

    return Starlette(routes=[Route("/", answer)])


def flask_site(limiter: Limiter) -> Wsgi:
    from flask import Flask, Response

    site = Flask(__name__)

    @site.get("/")
    def answer() -> Response:
        decision = limiter.acquire("visitor", RATE)
        return Response("", 200 if decision else 429, {"X-Worker": str(os.getpid())})

    return site


def wsgi() -> Wsgi:
    """For gunicorn, which makes the site before it forks its workers."""
    return flask_site(Limiter(os.environ["HOST_STORE"]))


def django_site(limiter: Limiter) -> Wsgi:
    import django
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path

    def answer(request: Any) -> Any:
        decision = limiter.acquire("visitor", RATE)
        return HttpResponse("", status=200 if decision else 429, headers={"X-Worker": str(os.getpid())})

    module = type(sys)("host_urls")
    module.urlpatterns = [path("", answer)]  # type: ignore[attr-defined]
    settings.configure(ROOT_URLCONF=module, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="for a test")
    django.setup()
    site: Wsgi = get_wsgi_application()
    return site


def plain_site(limiter: Limiter) -> Wsgi:
    def answer(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        decision = limiter.acquire("visitor", RATE)
        start("200 OK" if decision else "429 Too Many Requests", [("X-Worker", str(os.getpid()))])
        return [b""]

    return answer


class _Server(WSGIServer):
    """Serves on a socket that its parent listens on."""

    def __init__(self, site: Wsgi, listening: socket.socket) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = listening.getsockname()
        self.setup_environ()
        self.set_app(site)


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Access logs are not needed."""


def serve(site: Wsgi, listening: socket.socket) -> None:
    _Server(site, listening).serve_forever()


def serve_spawned(url: str, listening: socket.socket) -> None:
    serve(plain_site(Limiter(url)), listening)


def start_site(kind: str, url: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    if kind == "multiprocessing":
        spawn = multiprocessing.get_context("spawn")
        for _ in range(WORKERS):
            spawn.Process(target=serve_spawned, args=(url, listening), daemon=True).start()
    else:
        # As a server that preloads its site: the store is open when the workers are forked.
        limiter = Limiter(url)
        limiter.acquire("parent", RATE)
        site = {"flask": flask_site, "django": django_site}[kind](limiter)
        for _ in range(WORKERS):
            if os.fork() == 0:
                serve(site, listening)
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    signal.pause()


def charge_pairs(url: str) -> None:
    """Prints the number of charges so far after each: what is not printed may or may not have been charged."""
    limiter = Limiter(url, plans=PAIR, on_error="closed", deadline=30)
    count = 0
    while True:
        reservation = limiter.reserve(f"pair:{count % 7}", ["first", "second"], id=f"{os.getpid()}-{count}")
        assert reservation.decision.allowed
        count += 1
        os.write(1, b"%d\n" % count)


if __name__ == "__main__":
    program, store = sys.argv[1:]
    if program == "charge":
        charge_pairs(store)
    else:
        start_site(program, store)
