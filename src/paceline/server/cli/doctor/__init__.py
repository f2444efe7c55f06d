"""`paceline doctor`: is everything that is configured there, reachable, up to date and in order?"""

from __future__ import annotations

import asyncio
import platform
from importlib import metadata

import click

from paceline import __version__
from paceline.errors import MissingExtra
from paceline.server.apps import app_parts, installed_apps
from paceline.server.cli.doctor import database, servers, service
from paceline.server.cli.doctor.finding import Finding, loaded, not_installed
from paceline.server.cli.parameters import Command, as_json
from paceline.server.cli.terminal import emphasized, print_json, print_line, run
from paceline.server.settings import Settings, settings_file, unknown_variable_warnings
from paceline.server.shapes.health import FindingShown
from paceline.server.wiring.dispatch import load_own
from paceline.server.wiring.requirements import require_extras

PACKAGES = ("sqlalchemy", "psycopg", "oracledb", "hiredis", "confluent-kafka", "temporalio", "fastapi", "uvicorn")
COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


@click.command("doctor", cls=Command)
@as_json
def doctor(as_json: bool) -> None:
    """Check every configured dependency and say what to do; exit status 1 if anything is wrong."""
    settings = Settings.load()
    # Drivers' error texts may contain secrets.
    findings = [_redacted(settings, finding) for finding in run(_examine(settings))]
    if as_json:
        print_json([FindingShown.of(finding, told=finding.summary).dump() for finding in findings])
    else:
        for finding in findings:
            verdict = "FAIL" if not finding.ok else "warn" if finding.advice else "ok"
            print_line(f"{emphasized(f'{verdict:<4}', COLOURS[verdict])}  {finding.name}: {finding.summary}")
            if finding.advice:
                print_line(f"      {finding.advice}")
    raise click.exceptions.Exit(0 if all(finding.ok for finding in findings) else 1)


async def _examine(settings: Settings) -> list[Finding]:
    """Checks everything concurrently, each with a timeout."""
    groups = await asyncio.gather(
        database.examine(settings),
        servers.redis(settings),
        servers.kafka(settings),
        servers.temporal(settings),
        *(examine(settings) for examine in app_parts("doctor")),
        servers.collector(settings),
        service.examine(settings),
    )
    return [*_here(settings), *_named(settings), *(finding for findings in groups for finding in findings)]


def _here(settings: Settings) -> list[Finding]:
    findings = [
        Finding("paceline", True, f"{__version__} on Python {platform.python_version()}"),
        _packages(settings),
        Finding("settings file", True, str(settings_file() or "none; the environment and defaults are used")),
    ]
    if unknown := unknown_variable_warnings():
        findings.append(Finding("environment", False, "; ".join(unknown), "check the spelling"))
    return findings


def _packages(settings: Settings) -> Finding:
    """The versions of the most important packages, and all that the settings need beyond them."""
    versions = ", ".join(_versions())
    try:
        require_extras(settings, serves=True)
    except MissingExtra as error:
        return not_installed("packages", f"{versions}; what the settings need is ", error)
    return Finding("packages", True, versions)


def _named(settings: Settings) -> list[Finding]:
    """The files and modules that the settings name, loaded as the service loads them."""

    def domains() -> str:
        own = [domain.item_type for domain in load_own(settings).registry]
        types = [*(item_type for app in installed_apps() for item_type in app.item_types), *own]
        return ", ".join(types) or "none: no application is installed, and PACELINE_DISPATCH_DOMAINS names none"

    return [loaded("item types", domains)]


def _redacted(settings: Settings, finding: Finding) -> Finding:
    advice = finding.advice and settings.redacted(finding.advice)
    return finding._replace(summary=settings.redacted(finding.summary), advice=advice)


def _versions() -> list[str]:
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return versions
