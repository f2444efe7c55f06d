"""What is shipped in `deploy/` is true: rules fire as they should, and every metric named there is one we export."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

import headgate.adapters.prometheus
from headgate.settings import Settings

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"
DASHBOARD = ROOT / "deploy/grafana/dashboards/headgate.json"


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not installed; Debian's prometheus package carries it"
        pytest.fail(reason) if os.environ.get("HEADGATE_REQUIRE") == "all" else pytest.skip(reason)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "deploy/prometheus/rules.yml"),
        ("check", "config", "deploy/prometheus/prometheus.yml"),
        ("test", "rules", "deploy/prometheus/rules_test.yml"),
    ],
)
def test_prometheus_agrees(promtool: str, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([promtool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def exported() -> set[str]:
    """Every sample name that headgate's observers register."""
    registry = CollectorRegistry()
    for module in pkgutil.iter_modules(headgate.adapters.prometheus.__path__):
        loaded = importlib.import_module(f"headgate.adapters.prometheus.{module.name}")
        for observer in vars(loaded).values():
            ours = inspect.isclass(observer) and observer.__module__ == loaded.__name__
            if ours and "registry" in inspect.signature(observer).parameters:
                observer(registry)
    names = set()
    for metric in registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(metric.type, [""])
        names.update(metric.name + suffix for suffix in suffixes)
    return names


def named(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:rate_limiter|dispatch|payments|notifications)_[a-z0-9_]+\b", expression))


def expressions() -> list[str]:
    rules = yaml.safe_load(RULES.read_text())
    dashboard = json.loads(DASHBOARD.read_text())
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]] + [
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    ]


def test_alerts_and_panels_ask_for_metrics_that_exist() -> None:
    wanted = set().union(*map(named, expressions()))
    assert len(wanted) > 15
    assert wanted - exported() == set()


def test_every_alert_has_a_test_and_a_runbook_entry() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tested = (RULES.parent / "rules_test.yml").read_text()
    runbook = (ROOT / "docs/runbook.md").read_text()
    headings = re.findall(r"^## (.+)$", runbook, re.MULTILINE)
    entries = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    for rule in rules:
        assert f"alertname: {rule['alert']}" in tested
        assert rule["annotations"]["runbook"].removeprefix("docs/runbook.md#") in entries


def environments() -> dict[str, list[str]]:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    manifests = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/headgate.yaml").read_text()))
    return {
        "compose": list(compose["services"]["headgate"]["environment"]),
        "kubernetes": list(manifests[0]["stringData"]),
    }


@pytest.mark.parametrize("place", ["compose", "kubernetes"])
def test_only_settings_that_exist_are_set(place: str) -> None:
    for name in environments()[place]:
        field = name.removeprefix("HEADGATE_").lower()
        assert field in Settings.model_fields or field.partition("_")[0] in Settings.model_fields, name


def test_containers_run_as_nobody_in_particular_and_are_probed() -> None:
    manifests = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/headgate.yaml").read_text()))
    kinds = [manifest["kind"] for manifest in manifests]
    assert {"Deployment", "Job", "HorizontalPodAutoscaler", "PodDisruptionBudget"} <= set(kinds)
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "Job"):
            pod = manifest["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["containers"][0]["args"][0] in ("serve", "worker", "migrate")
    service = next(m for m in manifests if m["kind"] == "Deployment" and m["metadata"]["name"] == "headgate")
    container = service["spec"]["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert re.search(r"^USER 10001$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
