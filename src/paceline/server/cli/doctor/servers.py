"""Redis, Kafka and Temporal: each checked over its own protocol."""

from __future__ import annotations

import os

from paceline.errors import NotFound, StoreUnavailable
from paceline.extras import require
from paceline.server.cli.doctor.finding import TIMEOUT_SECONDS, Finding, clock_finding, within
from paceline.server.settings import Settings, masked, origin
from paceline.server.wiring.doctor import kafka_info, redis_info, temporal_info

REDIS_ADVICE = "check PACELINE_REDIS_URL, its password, and that the server runs"
KAFKA_ADVICE = "check PACELINE_KAFKA_BOOTSTRAP and that the brokers run"
TEMPORAL_ADVICE = "check PACELINE_TEMPORAL_ADDRESS and that the server runs"
PARTITIONS = 4


async def redis(settings: Settings) -> list[Finding]:
    """Version, role, eviction, clock and scripts of every server that counts limits."""
    url = settings.redis_url
    if url is None:
        return [Finding("redis", True, "not configured: the service counts limits in the database")]
    return await within("redis", masked(url), REDIS_ADVICE, _redis(settings))


async def _redis(settings: Settings) -> list[Finding]:
    findings = []
    for facts in await redis_info(settings, timeout=TIMEOUT_SECONDS):
        summary = f"{facts.address}, Redis {facts.version}, {facts.role} with {facts.replicas} replicas"
        is_master = facts.role == "master"
        instead = None if is_master else "a replica takes no writes; name the master, or use redis+sentinel://"
        findings.append(Finding("redis", is_master, summary, instead))
        if facts.eviction != "noeviction":
            evicts = f"{facts.address} throws keys away when memory is full ({facts.eviction})"
            limited = "" if facts.maxmemory else "; it has no maxmemory now, but may get one"
            advice = "a counter that is thrown away grants a second quota: set maxmemory-policy noeviction"
            findings.append(Finding("redis memory", True, evicts + limited, advice))
        if facts.scripts is not None:
            advice = "every decision is a script: allow EVAL and EVALSHA (ACL category @scripting)"
            findings.append(Finding("redis scripts", False, facts.scripts, advice))
        findings.append(clock_finding("redis clock", "Redis's", facts.now, facts.requested, facts.answered))
    return findings


async def kafka(settings: Settings) -> list[Finding]:
    """Brokers and topics."""
    servers = settings.kafka_bootstrap
    if servers is None:
        return [Finding("kafka", True, "not configured: messages go through the database's outbox")]
    return await within("kafka", servers, KAFKA_ADVICE, _kafka(settings))


async def _kafka(settings: Settings) -> list[Finding]:
    facts = await kafka_info(settings, timeout=TIMEOUT_SECONDS)
    summary = [
        f"{topic} has {count} partitions" if count is not None else f"{topic} is made when it is first used"
        for topic, count in facts.partitions.items()
    ]
    few = [topic for topic, count in facts.partitions.items() if count is not None and count < PARTITIONS]
    advice = f"at most so many senders share a topic; give {', '.join(few)} {PARTITIONS} or more" if few else None
    return [
        Finding("kafka", True, f"{settings.kafka_bootstrap}, {facts.brokers} brokers"),
        Finding("kafka topics", True, "; ".join(summary), advice),
    ]


async def temporal(settings: Settings) -> list[Finding]:
    """Version, namespace, and whether workers poll."""
    address = settings.temporal_address
    if address is None:
        return [Finding("temporal", True, "not configured: work runs in this process")]
    return await within("temporal", address, TEMPORAL_ADVICE, _temporal(settings))


async def _temporal(settings: Settings) -> list[Finding]:
    name = settings.temporal_namespace
    try:
        facts = await temporal_info(settings, timeout=TIMEOUT_SECONDS)
    except NotFound:
        advice = f"set PACELINE_TEMPORAL_NAMESPACE, or: temporal operator namespace create --namespace {name}"
        return [Finding("temporal", False, f"{settings.temporal_address} has no namespace {name!r}", advice)]
    summary = f"{settings.temporal_address}, Temporal {facts.version}, namespace {name}"
    polled = ", ".join(f"{queue}: {count}" for queue, count in facts.pollers.items())
    idle = [queue for queue, count in facts.pollers.items() if not count]
    start = f"nobody works on {', '.join(idle)}: start paceline worker" if idle else None
    return [Finding("temporal", True, summary), Finding("temporal workers", True, polled, start)]


async def reachable(name: str, setting: str, url: str, extra: str) -> list[Finding]:
    """Whether the URL's host answers HTTP. Only `HEAD /` is requested: nothing is sent or paid. `extra` is what the
    service calls it with."""
    return await within(name, origin(url), f"check {setting} and that the provider runs", _head(name, url, extra))


async def collector(settings: Settings) -> list[Finding]:
    """The collector of spans. If it is down, only spans are lost; so it is a warning."""
    if settings.traces != "otlp":
        summary = "written to standard error" if settings.traces == "console" else "off"
        return [Finding("traces", True, summary)]
    named = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    url = next((os.environ[name] for name in named if os.environ.get(name)), "http://localhost:4318")
    return await within("traces", origin(url), f"check {named[1]} and that the collector runs", _spans(url))


async def _spans(url: str) -> list[Finding]:
    require("traces", "traces")
    return await _head("traces", url, "httpx")


async def _head(name: str, url: str, extra: str) -> list[Finding]:
    require("asking a provider", extra)
    import httpx2

    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
            answer = await client.head(f"{origin(url)}/")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        # Its text may contain the whole URL.
        raise StoreUnavailable(f"can't be reached ({type(error).__name__})") from None
    fails = answer.status_code >= 500
    advice = "it answers, but fails; ask its operator" if fails else None
    return [Finding(name, True, f"{origin(url)} answers (HTTP {answer.status_code})", advice)]
