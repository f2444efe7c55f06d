"""A real Prometheus with the shipped rules, in a world that goes sixty times faster."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from paceline.testing.servers.failures import ServerUnavailable
from paceline.testing.servers.server import Server

RULES = Path(__file__).parents[2] / "deploy/prometheus/rules.yml"
FASTER = 60
"""An hour of the rules is a minute of the game day."""
SCRAPE = "1s"
EVALUATION = "500ms"

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SPAN = re.compile(r"(?<=\[)(\d+)([smh])(?=\])|(?<=offset )(\d+)([smh])")
_AGE = re.compile(r"(oldest(?:_due|_overdue)?_seconds(?:\{[^}]*\})?\) > )(\d+)")


def shipped_rules() -> dict[str, Any]:
    """The rules of `deploy/prometheus`."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    return rules


def alert_names() -> list[str]:
    """Every shipped alert."""
    return [rule["alert"] for group in shipped_rules()["groups"] for rule in group["rules"] if "alert" in rule]


def faster(rules: dict[str, Any], factor: int = FASTER) -> dict[str, Any]:
    """The rules with every span of time divided by one factor: windows, offsets, `for`, and how old work may be.

    Names, labels and all else of the expressions stay. How long one call takes is no span of the rules: it is compared
    with what was really measured.
    """
    groups = []
    for group in rules["groups"]:
        scaled = []
        for rule in group["rules"]:
            expression = _SPAN.sub(lambda span: _milliseconds(span, factor), rule["expr"])
            expression = _AGE.sub(lambda age: f"{age[1]}{int(age[2]) / factor:g}", expression)
            waits = {"for": f"{_seconds(rule['for']) * 1000 // factor}ms"} if "for" in rule else {}
            scaled.append(rule | {"expr": expression} | waits)
        groups.append(group | {"rules": scaled})
    return {"groups": groups}


def _milliseconds(span: re.Match[str], factor: int) -> str:
    return f"{_seconds(span[0]) * 1000 // factor}ms"


def _seconds(span: str) -> int:
    return int(span[:-1]) * _SECONDS[span[-1]]


class Prometheus(Server):
    """A Prometheus that scrapes `targets`: jobs by name, each with its addresses. `watch` changes them."""

    name: ClassVar[str] = "prometheus"

    def __init__(self, rules: dict[str, Any], targets: dict[str, list[str]]) -> None:
        super().__init__()
        program = shutil.which("prometheus")
        if program is None:
            raise ServerUnavailable("prometheus is not installed; Debian's package of that name carries it")
        self._program = program
        self._rules = rules
        self._targets = targets

    def prepare(self) -> None:
        (self.directory / "rules.yml").write_text(yaml.safe_dump(self._rules))
        self.watch(self._targets)
        configuration = {
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": EVALUATION},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": "by-file", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
            ],
        }
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))

    def watch(self, targets: dict[str, list[str]]) -> None:
        """From now on, these are scraped."""
        written = [{"targets": addresses, "labels": {"job": job}} for job, addresses in targets.items()]
        fresh = self.directory / "targets.new"
        fresh.write_text(json.dumps(written))
        fresh.rename(self.directory / "targets.json")

    def command(self) -> Sequence[str]:
        return [
            self._program,
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={self.address}",
            f"--query.lookback-delta={300 // FASTER}s",
            "--log.level=warn",
        ]

    def answers(self) -> bool:
        return bool(self._get("/api/v1/status/config")["status"] == "success")

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def answering(self) -> int:
        """How many targets answered their last scrape."""
        targets = self._get("/api/v1/targets?state=active")["data"]["activeTargets"]
        return sum(target["health"] == "up" for target in targets)

    def value(self, expression: str) -> Any:
        """What an expression is now; for a look at what an alert sees."""
        quoted = urllib.request.quote(expression)  # type: ignore[attr-defined]
        return self._get(f"/api/v1/query?query={quoted}")["data"]["result"]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.load(answer)
