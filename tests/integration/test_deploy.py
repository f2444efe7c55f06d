"""What is shipped in `deploy/` is true: rules fire as they should, and every metric named there is one we export."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from scripts import alert_rules, dashboards

import paceline.server.metrics
from paceline import __version__
from paceline.errors import ConfigurationError
from paceline.server.apps import app_alerts
from paceline.server.http import health
from paceline.server.settings import Settings
from paceline.server.shutdown import CLOSE_SECONDS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not installed; Debian's prometheus package carries it"
        if os.environ.get("PACELINE_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "deploy/prometheus/rules.yml"),
        ("check", "config", "deploy/prometheus/prometheus.yml"),
        ("test", "rules", "deploy/prometheus/rules_test.yml", "deploy/prometheus/rules_slow_test.yml"),
    ],
)
def test_prometheus_agrees(promtool: str, arguments: tuple[str, ...]) -> None:
    # A third of what it takes is collecting garbage, of which there is little enough.
    rarely = {**os.environ, "GOGC": "1000"}
    done = subprocess.run([promtool, *arguments], cwd=ROOT, env=rarely, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_those_of_paceline_and_of_each_application() -> None:
    rules = RULES.read_text()
    assert alert_rules.assembled(rules) == rules, "run scripts/alert_rules.py"
    own = {group["name"] for file in app_alerts() for group in yaml.safe_load(file.read_text())["groups"]}
    assert own == {"paceline-payments", "paceline-sms"}
    changed = rules.replace("alert: PaymentsUnknown", "alert: Other")
    assert alert_rules.assembled(changed) == rules


def registered() -> CollectorRegistry:
    """What all of paceline's observers register."""
    registry = CollectorRegistry()
    modules = [f"paceline.server.metrics.{one.name}" for one in pkgutil.iter_modules(paceline.server.metrics.__path__)]
    for name in [*modules, "paceline_payments.service.metrics", "paceline_sms.service.metrics"]:
        loaded = importlib.import_module(name)
        for observer in vars(loaded).values():
            ours = inspect.isclass(observer) and observer.__module__ == loaded.__name__
            if ours and "registry" in inspect.signature(observer).parameters:
                observer(registry)
    return registry


SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}


def exported() -> set[str]:
    """The name of every sample."""
    return {metric.name + suffix for metric in registered().collect() for suffix in SUFFIXES.get(metric.type, [""])}


def named(expression: str) -> set[str]:
    ours = "rate_limiter|dispatch|downstream|payments|notifications?|ingress|http|dependency|envoy|kafka"
    return set(re.findall(rf"(?<![:\w])(?:{ours})_[a-z0-9_]+\b", expression))


def expressions() -> list[str]:
    rules = yaml.safe_load(RULES.read_text())
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]] + drawn()


def drawn() -> list[str]:
    """What the panels of the dashboards ask for."""
    return [line.expression for panels in dashboards.DASHBOARDS.values() for panel in panels for line in panel.lines]


def test_alerts_and_panels_ask_for_metrics_that_exist() -> None:
    metrics = set().union(*map(named, expressions()))
    assert len(metrics) > 15
    assert metrics - exported() == set()


def test_the_dashboards_are_those_of_the_script() -> None:
    shipped = {file.stem: file.read_text() for file in dashboards.FOLDER.glob("*.json")}
    assert shipped == {name: dashboards.text(name) for name in dashboards.DASHBOARDS}, "run scripts/dashboards.py"
    assert len({dashboards.dashboard(name)["uid"] for name in shipped}) == len(shipped)


def test_every_metric_is_on_a_dashboard_by_labels_that_it_has() -> None:
    registry = registered()
    missing, wrong = [], []
    for metric in registry.collect():
        names = {metric.name + suffix for suffix in SUFFIXES.get(metric.type, [""])}
        asked = [expression for expression in drawn() if names & named(expression)]
        if not asked:
            missing.append(metric.name)
        labels = labels_of(registry, metric.name)
        used = {label for text in asked for found in re.findall(r"by \(([^)]*)\)", text) for label in found.split(", ")}
        if labels is not None and (unknown := used - {"le", "instance", *labels}):
            wrong.append((metric.name, unknown, labels))
    assert (missing, wrong) == ([], [])


def labels_of(registry: CollectorRegistry, name: str) -> Sequence[str] | None:
    """The labels of a metric; None of one that is computed when it is read."""
    labels: Sequence[str] | None = getattr(registry._names_to_collectors.get(name), "_labelnames", None)
    return labels


def test_prometheus_can_evaluate_every_panel(promtool: str, tmp_path: Path) -> None:
    """Grafana's own names of spans stand for one, as its data source puts it in."""
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m").replace("$__range", "1h")}
        for number, expression in enumerate(drawn())
    ]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", tmp_path / "panels.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_and_a_runbook_entry() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    tested = "".join(path.read_text() for path in RULES.parent.glob("*_test.yml"))
    runbook = (ROOT / "docs/runbook.md").read_text()
    headings = re.findall(r"^## (.+)$", runbook, re.MULTILINE)
    entries = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    for rule in rules:
        assert f"alertname: {rule['alert']}" in tested
        assert rule["annotations"]["runbook"].removeprefix("docs/runbook.md#") in entries


def setting_names() -> set[str]:
    """Every variable there is."""
    found = {"PACELINE_SETTINGS_FILE", "PACELINE_REQUIRE", "PACELINE_TEST_ORACLE_URL"}
    # Settings of Django.
    found |= {"PACELINE_LIMITER", "PACELINE_RULES", "PACELINE_DEFAULTS", "PACELINE_ON_DENIED", "PACELINE_QUEUE"}
    for name, value in Settings().model_dump().items():
        inner = [f"{name}_{each}" for each in value] if isinstance(value, dict) and value else [name]
        found.update(f"PACELINE_{each}".upper() for each in inner)
    return found


SHIPPED = [
    ROOT / "Dockerfile",
    ROOT / "compose.yaml",
    ROOT / "README.md",
    *(path for path in (ROOT / "deploy").rglob("*") if path.is_file()),
    *(ROOT / "docs").rglob("*.md"),
]


@pytest.mark.parametrize("page", SHIPPED, ids=lambda page: str(page.relative_to(ROOT)))
def test_only_settings_that_exist_are_named(page: Path) -> None:
    named = set(re.findall(r"\bPACELINE_[A-Z0-9_]*[A-Z0-9]\b(?!_)", page.read_text("utf-8")))
    assert named <= setting_names()


def manifests(*kinds: str) -> list[dict[str, Any]]:
    every = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/paceline.yaml").read_text()))
    return [manifest for manifest in every if not kinds or manifest["kind"] in kinds]


def test_the_secret_and_the_composition_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their settings are accepted, except for placeholders, which must be replaced."""
    compose: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    for environment in (
        manifests("Secret")[0]["stringData"],
        *(compose["services"][name]["environment"] for name in ("paceline", "worker", "migrate")),
    ):
        with monkeypatch.context() as inside:
            for name, value in environment.items():
                inside.setenv(name, str(value))
            if "CHANGE-ME" in environment["PACELINE_API_TOKEN"]:
                with pytest.raises(ConfigurationError, match="PACELINE_API_TOKEN: is still the placeholder"):
                    Settings.load()
            for name in ("PACELINE_API_TOKEN", "PACELINE_ADMIN_TOKEN"):
                inside.setenv(name, f"a-token-for-{name}")
            assert Settings.load().redis_url is not None


def test_what_kubernetes_sets_for_a_service_of_our_name_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PORT", "tcp://10.0.0.1:80")
    with pytest.raises(ConfigurationError, match="enableServiceLinks"):
        Settings.load()
    for manifest in manifests("Deployment", "Job"):
        assert manifest["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_containers_run_as_nobody_in_particular_and_are_probed() -> None:
    for manifest in manifests("Deployment", "Job"):
        pod = manifest["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        container = pod["containers"][0]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["args"][0] in ("serve", "worker", "migrate")
        assert container["image"].endswith(f":{__version__}")
        if manifest["kind"] == "Deployment":
            assert container["startupProbe"]["httpGet"]["path"] == "/health/live"
            assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        else:
            assert __version__ in manifest["metadata"]["name"]
    service = next(manifest for manifest in manifests("Deployment") if manifest["metadata"]["name"] == "paceline")
    container = service["spec"]["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["readinessProbe"]["timeoutSeconds"] > health.TIMEOUT_SECONDS
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    stopping = (
        Settings().http.shutdown_seconds + CLOSE_SECONDS + int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    )
    assert service["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > stopping
    worker = next(manifest for manifest in manifests("Deployment") if manifest["metadata"]["name"] == "paceline-worker")
    stopping = Settings().dispatch.shutdown_seconds
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > stopping
    assert re.search(r"^USER 10001$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_pods_are_bounded_apart_and_reached_only_where_they_listen() -> None:
    secret = yaml.safe_dump(manifests("Secret")[0])
    servers = {int(port) for port in re.findall(r":(\d{4})\b", secret)} | {5432}
    policies = {
        policy["spec"]["podSelector"]["matchLabels"]["app"]: policy["spec"] for policy in manifests("NetworkPolicy")
    }
    for manifest in manifests("Deployment", "Job"):
        template = manifest["spec"]["template"]
        app, pod = template["metadata"]["labels"]["app"], template["spec"]
        (container,) = pod["containers"]
        assert {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
        assert "ephemeral-storage" in container["resources"]["requests"]
        assert all("sizeLimit" in volume["emptyDir"] for volume in pod.get("volumes", []))
        policy = policies.pop(app)
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        open_ports = [port["port"] for rule in policy.get("ingress", []) for port in rule["ports"]]
        assert open_ports == [port["name"] for port in container.get("ports", [])]
        reached = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
        assert {53, 5432} <= reached
        if manifest["kind"] == "Deployment":
            assert servers <= reached
            (apart,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"app": app}
    assert policies == {}


def test_the_image_has_the_applications_and_the_worker_runs_all_of_them() -> None:
    build = (ROOT / "Dockerfile").read_text()
    for app in (ROOT / "apps").iterdir():
        assert not (app / "pyproject.toml").exists() or f"./apps/{app.name}" in build
    worker = next(each for each in manifests("Deployment") if each["metadata"]["name"] == "paceline-worker")
    assert worker["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["worker", "all"]
    compose: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert "all" in compose["worker"]["command"]


def test_every_deployment_is_found_by_what_looks_after_it() -> None:
    labels = {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in manifests("Deployment")
    }
    budgets = [manifest["spec"]["selector"]["matchLabels"] for manifest in manifests("PodDisruptionBudget")]
    assert list(labels.values()) == budgets
    assert manifests("Service")[0]["spec"]["selector"] == labels["paceline"]
    scaled = manifests("HorizontalPodAutoscaler")[0]["spec"]
    deployment = next(manifest for manifest in manifests("Deployment") if manifest["metadata"]["name"] == "paceline")
    assert scaled["scaleTargetRef"]["name"] == "paceline"
    assert "replicas" not in deployment["spec"], "applying it again would undo what the autoscaler decided"
    assert scaled["minReplicas"] > manifests("PodDisruptionBudget")[0]["spec"]["minAvailable"]


def test_a_pod_that_is_down_has_the_job_that_the_alert_asks_for() -> None:
    """By the relabelling that is shipped, and by the usual one, which keeps the label `app`."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    down = next(rule["expr"] for rule in rules if rule.get("alert") == "PacelineDown")
    jobs, apps = (re.search(rf'{label}=~"([^"]+)"', down) for label in ("job", "app"))
    assert jobs is not None
    assert apps is not None
    (scrape,) = yaml.safe_load((ROOT / "deploy/prometheus/kubernetes.yml").read_text())["scrape_configs"]
    for manifest in manifests("Deployment"):
        described = manifest["spec"]["template"]["metadata"]
        labels = {f"__meta_kubernetes_pod_label_{name}": value for name, value in described["labels"].items()}
        for name, value in described["annotations"].items():
            labels["__meta_kubernetes_pod_annotation_" + re.sub(r"\W", "_", name)] = value
        labels |= {"__address__": "10.0.0.7", "job": scrape["job_name"]}
        port = manifest["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
        labels = relabelled(labels, scrape["relabel_configs"])
        assert labels["__address__"] == f"10.0.0.7:{port}"
        assert labels["job"] == manifest["metadata"]["name"]
        assert re.fullmatch(jobs[1], labels["job"])
        assert re.fullmatch(apps[1], described["labels"]["app"])
    assert re.fullmatch(jobs[1], "monitoring/paceline-worker")
    assert not re.fullmatch(jobs[1], "another")


def relabelled(labels: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, str]:
    """What Prometheus makes of a target's labels, for the two actions that we use."""
    for rule in rules:
        joined = ";".join(labels.get(name, "") for name in rule["source_labels"])
        match = re.fullmatch(rule.get("regex", "(.*)"), joined)
        if rule.get("action") == "keep":
            assert match is not None, rule
        elif match is not None:
            labels[rule["target_label"]] = match.expand(rule.get("replacement", "$1").replace("$", "\\"))
    return labels


def test_prometheus_scrapes_what_is_composed() -> None:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = [
        target.partition(":") for job in scraped for config in job["static_configs"] for target in config["targets"]
    ]
    assert {name for name, _, _ in targets} == {"paceline", "worker"}
    ports = {name: port for name, _, port in targets}
    assert ports["paceline"] == str(Settings().port)
    assert ports["worker"] in compose["worker"]["command"]
    for name, service in compose.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in compose
            assert how["condition"] != "service_healthy" or "healthcheck" in compose[needed], (name, needed)
