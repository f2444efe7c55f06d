"""The log: one line per event on standard error, as text or JSON, and one per request with its id."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import orjson
import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.entrypoints.http.problem import unexpected
from headgate.settings import Settings

QUIET = ("/health/", "/q/health/", "/metrics", "/q/metrics")
"""Paths that machines poll: logged at debug."""

PRIVATE = ("/api", "/admin", "/console/session")
"""Paths whose answers are for one caller: nothing on the way, the browser neither, may keep them."""
NO_STORE = ((b"cache-control", b"no-store"),)


def configure(settings: Settings) -> None:
    """Sends headgate's and every library's log lines to standard error in the wanted form."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[Any]
    if settings.log_format == "json":
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    elif sys.stderr.isatty():
        # Plain tracebacks: the default ones show local variables, and with them secrets.
        plain = structlog.dev.plain_traceback
        renderer = [structlog.dev.ConsoleRenderer(pad_event_to=0, sort_keys=False, exception_formatter=plain)]
    else:
        renderer = [structlog.processors.format_exc_info, _text]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer], foreign_pre_chain=shared
        )
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("headgate").setLevel(level)


class RequestLog:
    """Gives each request an id, logs what came of it, and turns what nobody caught into a 500 problem."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or os.urandom(12).hex().encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        started = time.perf_counter()
        status = 0
        uncached = NO_STORE if scope["path"].startswith(PRIVATE) else ()

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id),
                    (b"x-content-type-options", b"nosniff"),
                    *uncached,
                ]
            await send(message)

        try:
            await self._app(scope, receive, answered)
        except ClientDisconnect:
            self._write("info", scope, request_id, started, status or 499)
        except Exception:
            self._log.exception("request failed", path=scope["path"], request_id=request_id.decode())
            if not status:
                await unexpected().response()(scope, receive, answered)
            self._write("error", scope, request_id, started, status)
        else:
            quiet = scope["path"].startswith(QUIET)
            self._write("debug" if quiet else "info", scope, request_id, started, status)

    def _write(self, level: str, scope: Scope, request_id: bytes, started: float, status: int) -> None:
        getattr(self._log, level)(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round((time.perf_counter() - started) * 1000, 1),
            request_id=request_id.decode(),
        )


def _given_id(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and len(value) <= 128 and value.isascii() and value.decode().isprintable():
            return bytes(value) or None
    return None


def _text(_logger: Any, _method: str, event: Any) -> str:
    """One plain line. Every request writes one, so this is a tenth of what structlog's own renderer costs."""
    time, level, what, trace = (event.pop(key, "") for key in ("timestamp", "level", "event", "exception"))
    rest = " ".join([f"{key}={_quoted(value)}" for key, value in event.items()])
    return f"{time} {level:<7} {what} {rest}" + (f"\n{trace}" if trace else "")


def _quoted(value: Any) -> str:
    text = str(value)
    # Quoted and escaped: a path may hold spaces, and must not be able to start a line of its own.
    return text if text.isprintable() and " " not in text and '"' not in text else repr(text)


def _json(value: Any, **options: Any) -> str:
    return orjson.dumps(value, default=options.get("default"), option=orjson.OPT_NON_STR_KEYS).decode()
