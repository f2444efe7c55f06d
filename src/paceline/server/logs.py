"""The log of a process: one line per event on standard error, as text or as JSON.

A line has the request it belongs to (`request_id`), the trace (`trace_id`, if there is one), and the event or item it
is about. No value can inject a line or a terminal sequence, and secrets of the settings are removed from what libraries
log.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from paceline import tracing
from paceline.extras import absent, require
from paceline.server.apps import app_packages
from paceline.server.settings import Settings, unknown_variable_warnings

REQUEST_ID: ContextVar[str] = ContextVar("paceline_request_id", default="")
"""The current request's id; empty outside of requests."""
FIELDS = ("event_id", "item_type", "item_id", "batch_id", "config", "config_version", "user_id", "message_id", "plan")
"""The fields of a line: given as `extra` to Python's logging."""
_CONTROLS = {
    number: f"\\u{number:04x}"
    for number in (*range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
"""Characters that JSON allows unescaped, and that some readers treat as a line end or a control sequence."""
_CALLED = re.compile(r"(with url: )\S+")
"""The URL in an HTTP client's error message."""


def warn_unknown_variables() -> None:
    """Logs a warning per variable that looks like a setting and is none."""
    for line in unknown_variable_warnings():
        logging.getLogger("paceline").warning(line)


def configure(settings: Settings) -> None:
    """Sends paceline's and every library's log lines to standard error in the configured format."""
    # Libraries log warnings and errors only: httpx2 logs every URL it calls, and a provider's is a secret.
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    for package in ("paceline", *app_packages()):
        logging.getLogger(package).setLevel(level)
    others = max(level, logging.WARNING)
    try:
        # structlog would load rich, if it is installed, for tracebacks that are not used here: 9 MiB.
        with absent("rich"):
            import structlog
    except ModuleNotFoundError:
        # A worker without the server's extra.
        if settings.log_format == "json":
            require("log_format json", "server")
        logging.basicConfig(level=others, handlers=[_plain_handler(settings)], force=True)
        return
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _belonging,
    ]
    renderer: list[Any] = [structlog.processors.format_exc_info, _without_secrets(settings)]
    if settings.log_format == "json":
        renderer.append(structlog.processors.JSONRenderer(_json))
    elif sys.stderr.isatty():
        # Plain tracebacks: the default ones show local variables, and with them secrets.
        plain = structlog.dev.plain_traceback
        pretty = structlog.dev.ConsoleRenderer(pad_event_to=0, sort_keys=False, exception_formatter=plain)
        renderer += [_harmless, pretty]
    else:
        renderer.append(_text)
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
            foreign_pre_chain=[*shared, _of_a_library, structlog.stdlib.ExtraAdder(allow=FIELDS)],
        )
    )
    logging.basicConfig(level=others, handlers=[handler], force=True)


def _of_a_library(_logger: Any, _method: str, event: Any) -> Any:
    """Marks lines of Python's logging."""
    event["_foreign"] = True
    return event


def _belonging(_logger: Any, _method: str, event: Any) -> Any:
    """Adds the request and the trace of a line."""
    request_id = REQUEST_ID.get()
    if request_id:
        event.setdefault("request_id", request_id)
    origin = tracing.origin()
    if origin is not None:
        event["trace_id"] = origin.traceparent.split("-")[1]
    return event


def _text(_logger: Any, _method: str, event: Any) -> str:
    """One plain line. Every request writes one, so it is fast: a tenth of the cost of structlog's renderer."""
    time, level, what, trace = (event.pop(key, "") for key in ("timestamp", "level", "event", "exception"))
    rest = " ".join([f"{key}={_quoted(value)}" for key, value in event.items()])
    return f"{time} {level:<7} {escaped(str(what))} {rest}".rstrip(" ") + (_indented(trace) if trace else "")


def _harmless(_logger: Any, _method: str, event: Any) -> Any:
    """For a terminal: values without control sequences."""
    trace = event.pop("exception", None)
    for key, value in event.items():
        if not isinstance(value, int | float | None):
            event[key] = escaped(str(value))
    if trace:
        event["exception"] = _indented(trace).lstrip("\n")
    return event


def _without_secrets(settings: Settings) -> Callable[[Any, str, Any], Any]:
    """A processor that redacts secrets in tracebacks, and in the lines of libraries."""

    redact = settings.redactor()

    def without_secrets(_logger: Any, _method: str, event: Any) -> Any:
        if "exception" in event:
            event["exception"] = redact(_without_paths(event["exception"]))
        if event.pop("_foreign", False):
            event["event"] = redact(_without_paths(str(event["event"])))
        return event

    return without_secrets


def hidden(settings: Settings, text: str) -> str:
    """A library's message, without secrets."""
    return settings.redacted(_without_paths(text))


def _without_paths(text: str) -> str:
    return _CALLED.sub(r"\1***", text)


def escaped(text: str) -> str:
    """The text with its control characters and line separators escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _quoted(value: Any) -> str:
    text = str(value)
    # Quoted and escaped: a path may hold spaces, and must not inject a line.
    return text if text.isprintable() and " " not in text and '"' not in text else repr(text)


def _indented(trace: str) -> str:
    """A traceback, indented below its line; an exception's message may hold line breaks, and must not look like a
    line."""
    return "".join([f"\n    {escaped(line)}" for line in trace.split("\n")])


def _json(value: Any, **options: Any) -> str:
    import orjson

    try:
        line = orjson.dumps(value, default=options.get("default"), option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # A lone surrogate, in some library's message.
        return json.dumps(value, default=str)
    return line if line.isascii() and "\x7f" not in line else line.translate(_CONTROLS)


def _plain_handler(settings: Settings) -> logging.Handler:
    class OneLine(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
            record.message = escaped(hidden(settings, record.message))
            return super().formatMessage(record)

        def formatException(self, ei: Any) -> str:  # noqa: N802
            return _indented(hidden(settings, super().formatException(ei))).lstrip("\n")

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler
