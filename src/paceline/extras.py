"""What each extra installs, and the error for one that is not installed: `MissingExtra`.

A feature that needs an extra calls `require` first. Nothing here imports what it looks for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from paceline.errors import MissingExtra

MODULES = {
    "aiohttp": ("aiohttp",),
    "celery": ("celery",),
    "calendars": ("holidays",),
    "django": ("django", "asgiref"),
    "drf": ("django", "asgiref", "rest_framework"),
    "encryption": ("cryptography",),
    "fastapi": ("fastapi",),
    "flask": ("flask",),
    "grpc": ("grpc", "grpc_health", "envoy_data_plane", "yaml"),
    "httpx": ("httpx2",),
    "kafka": ("confluent_kafka",),
    "litestar": ("litestar",),
    "oidc": ("joserfc", "httpx2"),
    "oracle": ("oracledb",),
    "payments": ("paceline_payments", "httpx2", "schwifty"),
    "periodic": ("cronsim",),
    "plot": ("matplotlib",),
    "postgres": ("psycopg", "greenlet"),
    "quart": ("quart",),
    "queue": ("paceline.dispatch", "sqlalchemy", "alembic", "pydantic", "click"),
    "requests": ("requests",),
    "server": (
        "fastapi",
        "fastapi_offline",
        "uvicorn",
        "prometheus_client",
        "structlog",
        "orjson",
        "httptools",
        "httpx2",
    ),
    "sms": ("paceline_sms", "aiohttp", "httpx2", "phonenumbers"),
    "starlette": ("starlette",),
    "temporal": ("temporalio",),
    "timezones": ("tzdata",),
    "traces": ("opentelemetry.sdk", "opentelemetry.exporter"),
}
"""The modules that each extra adds and paceline imports. `redis` is not here: its parser is used if it is installed."""
WITH_QUEUE = frozenset(
    "calendars encryption kafka oidc oracle payments periodic plot postgres server sms temporal traces".split()  # noqa: SIM905
)
"""The extras that bring `queue`, too."""
DATABASES = {"postgresql": "postgres", "postgres": "postgres", "oracle": "oracle"}
"""The extra that a database's URL scheme needs."""


def installed(extra: str) -> bool:
    """Whether every module of an extra that paceline imports can be found."""
    return all(map(_is_installed, MODULES[extra])) and (extra not in WITH_QUEUE or installed("queue"))


def require(what: str, *extras: str) -> None:
    """Raises `MissingExtra`, with every extra that is missing, unless all are installed: `what` needs them."""
    missing = [extra for extra in dict.fromkeys(extras) if not installed(extra)]
    if missing:
        raise MissingExtra(what, ",".join(missing))


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """`require`, around the imports of a module that can't work without them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {module.partition(".")[0] for module in MODULES[extra]}:
            raise MissingExtra(what, extra) from error
        raise


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # nor is the package it would be in


@contextmanager
def absent(package: str) -> Iterator[None]:
    """Lets imports of a package that is not loaded yet fail, as if it were not installed: for a library that loads it,
    if it is there, for something that is not used."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
