"""`headgate doctor`: is everything that is configured there, reachable and up to date?"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib import metadata
from typing import NamedTuple
from urllib.parse import urlsplit

import typer

from headgate import __version__, bootstrap
from headgate.entrypoints.cli.terminal import AsJson, run, say, say_json
from headgate.errors import HeadgateError
from headgate.settings import Settings, masked, settings_file, unknown_variables

MOST_OFFSET_SECONDS = 2.0
PATIENCE_SECONDS = 10.0
PACKAGES = ("sqlalchemy", "psycopg", "oracledb", "redis", "confluent-kafka", "temporalio", "fastapi", "uvicorn")


class Finding(NamedTuple):
    """One thing looked at."""

    name: str
    ok: bool
    told: str
    advice: str | None = None


def doctor(as_json: AsJson = False) -> None:
    """Check every configured dependency and say what to do; exit status 1 if anything is wrong."""
    findings = run(_examined())
    if as_json:
        say_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            say(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name}: {finding.told}")
            if finding.advice:
                say(f"      {finding.advice}")
    raise typer.Exit(0 if all(finding.ok for finding in findings) else 1)


async def _examined() -> list[Finding]:
    settings = Settings.load()
    return [finding async for finding in _findings(settings)]


async def _findings(settings: Settings) -> AsyncIterator[Finding]:
    yield Finding("headgate", True, f"{__version__} on Python {platform.python_version()}")
    yield Finding("packages", True, ", ".join(_versions()))
    yield Finding("settings file", True, str(settings_file() or "none; the environment and defaults are used"))
    if unknown := unknown_variables():
        yield Finding("environment", False, f"{', '.join(unknown)}: no such setting", "check the spelling")
    yield _exposure(settings)
    async for finding in _database(settings.database_url):
        yield finding
    if settings.redis_url is None:
        yield Finding("redis", True, "not configured: the service counts limits in the database")
    else:
        yield await _reached("redis", settings.redis_url, 6379, "check HEADGATE_REDIS_URL and that the server runs")
    if settings.kafka_bootstrap is None:
        yield Finding("kafka", True, "not configured: messages go through the database's outbox")
    else:
        for server in settings.kafka_bootstrap.split(","):
            yield await _reached("kafka", server, 9092, "check HEADGATE_KAFKA_BOOTSTRAP and that the broker runs")
    if settings.temporal_address is None:
        yield Finding("temporal", True, "not configured: work runs in this process")
    else:
        advice = "check HEADGATE_TEMPORAL_ADDRESS and that the server runs"
        yield await _reached("temporal", settings.temporal_address, 7233, advice)


def _exposure(settings: Settings) -> Finding:
    try:
        settings.refuse_exposure()
    except HeadgateError as error:
        return Finding("listening", False, str(error))
    guarded = "with tokens" if settings.api_token or settings.admin_token else "without tokens, this machine only"
    return Finding("listening", True, f"{settings.host}:{settings.port}, {guarded}")


async def _database(url: str) -> AsyncIterator[Finding]:
    if url.startswith("memory:"):
        yield Finding("database", True, "memory: gone when the process ends")
        return
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            asked = datetime.now(UTC)
            facts = await bootstrap.database_facts(url)
            answered = datetime.now(UTC)
    except TimeoutError:
        yield Finding(
            "database", False, f"{masked(url)} did not answer within {PATIENCE_SECONDS:g} s", _DATABASE_ADVICE
        )
        return
    except HeadgateError as error:
        yield Finding("database", False, f"{masked(url)}: {error}", _DATABASE_ADVICE)
        return
    except ModuleNotFoundError as error:
        yield Finding("database", False, f"{error.name} is not installed", "pip install 'headgate[postgres,oracle]'")
        return
    yield Finding("database", True, f"{masked(url)}, {facts.dialect} {facts.version}")
    if facts.pending:
        yield Finding("schema", False, f"lacks {', '.join(facts.pending)}", "run headgate migrate up")
    else:
        yield Finding("schema", True, f"up to date at {facts.revision}")
    # The database told its time somewhere between asking and answering; only what lies outside of that is offset.
    offset = max((asked - facts.now).total_seconds(), (facts.now - answered).total_seconds(), 0.0)
    advice = "the database's clock decides; set both clocks by NTP" if offset > MOST_OFFSET_SECONDS else None
    yield Finding("clock", advice is None, f"{offset:.3f} s away from the database's", advice)


_DATABASE_ADVICE = "check HEADGATE_DATABASE_URL, that the server runs, and the user's rights"


async def _reached(name: str, address: str, default_port: int, advice: str) -> Finding:
    """Whether somebody listens at each of the address's hosts. The protocol behind is not spoken here."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    for server in (parts.netloc.rpartition("@")[2] or address).split(","):
        host, _, port = server.rpartition(":") if ":" in server else (server, "", "")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port or default_port))
            writer.close()
        except (OSError, TimeoutError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return Finding(name, False, f"{server} can't be reached: {reason}", advice)
    return Finding(name, True, f"{masked(address)} is reachable")


def _versions() -> list[str]:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return found
