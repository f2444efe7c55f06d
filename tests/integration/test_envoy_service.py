"""`RateLimitService` over real gRPC: the messages, headers, tokens, TLS, health, live changes."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import pytest
from fastapi import FastAPI
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.errors import ConfigurationError, PacelineError
from paceline.limits.model import Charge, FixedWindow, Rule
from paceline.limits.stores.redis_commands import common_slot
from paceline.server.access.authenticator import create_token
from paceline.server.envoy.descriptors import counted_key
from paceline.server.envoy.messages import OK, UNITS, RateLimitRequest, RateLimitResponse
from paceline.server.envoy.messages import OVER_LIMIT as OVER
from paceline.server.envoy.servicer import MAX_DESCRIPTORS, SERVICE
from paceline.server.grpc.access import _client
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from paceline.server.wiring.envoy import check_grpc

TOKEN = "api-token-of-the-test"
RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: minute, requests_per_unit: 2}
  - key: route
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: banned
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: soft
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 1}
"""


class Caller:
    """A gRPC client that writes requests as Envoy does."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        self.channel = channel
        self._call: Any = channel.unary_unary(
            f"/{SERVICE}/ShouldRateLimit",
            request_serializer=RateLimitRequest.SerializeToString,
            response_deserializer=RateLimitResponse.FromString,
        )
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    async def ask(self, *descriptors: str, domain: str = "edge", hits: int = 0) -> Any:
        return await self.send(request(*descriptors, domain=domain, hits=hits))

    async def send(self, message: Any, **options: Any) -> Any:
        return await self._call(message, metadata=self._metadata, **options)

    async def health(self, service: str = "") -> str:
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def request(*descriptors: str, domain: str = "edge", hits: int = 0) -> Any:
    """A request with descriptors such as `user=bob,route=/`."""
    message = RateLimitRequest(domain=domain, hits_addend=hits)
    for descriptor in descriptors:
        added = message.descriptors.add()
        for entry in descriptor.split(","):
            key, _, value = entry.partition("=")
            added.entries.add(key=key, value=value)
    return message


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "limits.yaml"
    file.write_text(RULES)
    return file


def settings(rules: Path | None, **more: Any) -> Settings:
    envoy = {"config": rules} | more.pop("envoy", {})
    return Settings(**{"database_url": "memory://", "grpc": {"port": 0} | more.pop("grpc", {}), "envoy": envoy} | more)


@asynccontextmanager
async def served(app: FastAPI, token: str | None = None) -> AsyncIterator[Caller]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        address = f"127.0.0.1:{app.state.services.grpc_port}"
        yield Caller(await stack.enter_async_context(grpc.aio.insecure_channel(address)), token)


@pytest.fixture
async def caller(rules: Path) -> AsyncIterator[Caller]:
    async with served(create_app(settings(rules))) as opened:
        yield opened


def headers(answer: Any) -> dict[str, str]:
    return {header.key: header.value for header in answer.response_headers_to_add}


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_an_answer_has_status_limit_reset_and_headers(caller: Caller) -> None:
    answer = await caller.ask("user=bob")
    assert answer.overall_code == OK
    (status,) = answer.statuses
    assert (status.code, status.limit_remaining) == (OK, 1)
    assert (status.current_limit.requests_per_unit, status.current_limit.name) == (2, "per-user")
    assert status.current_limit.unit == UNITS["MINUTE"]
    assert 0 < status.duration_until_reset.seconds <= 60
    shown = headers(answer)
    assert shown["RateLimit-Policy"] == '"edge.user";q=2;w=60'
    assert shown["RateLimit"].startswith('"edge.user";r=1;t=')
    assert "Retry-After" not in shown


async def test_a_denial_says_when_to_come_back(caller: Caller) -> None:
    answers = [await caller.ask("user=bob") for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OVER]
    status = answers[2].statuses[0]
    assert (status.code, status.limit_remaining) == (OVER, 0)
    assert int(headers(answers[2])["Retry-After"]) == status.duration_until_reset.seconds > 0


async def test_each_descriptor_has_a_status_in_order(caller: Caller) -> None:
    for _ in range(2):
        await caller.ask("user=bob")
    answer = await caller.ask("free=x", "route=/", "user=bob", "unknown=x", "soft=x")
    assert answer.overall_code == OVER
    assert [status.code for status in answer.statuses] == [OK, OK, OVER, OK, OK]
    assert answer.statuses[0].limit_remaining == 2**32 - 1
    assert answer.statuses[1].limit_remaining == 100
    assert not answer.statuses[3].HasField("current_limit")
    assert [status.HasField("duration_until_reset") for status in answer.statuses] == [False, True, True, False, True]


async def test_a_ban_shows_a_limit_of_zero(caller: Caller) -> None:
    answer = await caller.ask("banned=x")
    assert answer.overall_code == answer.statuses[0].code == OVER
    assert answer.statuses[0].current_limit.requests_per_unit == 0
    assert answer.statuses[0].current_limit.unit == UNITS["DAY"]
    assert answer.statuses[0].duration_until_reset.seconds == 86_400


async def test_shadow_never_says_over(caller: Caller) -> None:
    answers = [await caller.ask("soft=x", hits=1) for _ in range(3)]
    assert {answer.overall_code for answer in answers} == {answer.statuses[0].code for answer in answers} == {OK}


async def test_hits_of_the_request_and_of_a_descriptor(caller: Caller) -> None:
    assert (await caller.ask("route=/", hits=60)).statuses[0].limit_remaining == 40
    assert (await caller.ask("route=/", hits=41)).overall_code == OVER
    message = request("route=/", hits=7)
    message.descriptors[0].hits_addend.value = 0
    assert (await caller.send(message)).statuses[0].limit_remaining == 40
    message.descriptors[0].hits_addend.value = 30
    assert (await caller.send(message)).statuses[0].limit_remaining == 10
    message.descriptors[0].hits_addend.value = 30
    assert (await caller.send(message)).overall_code == OVER
    assert (await caller.ask("route=/")).overall_code == OVER
    message.descriptors[0].hits_addend.value = 20
    message.descriptors[0].is_negative_hits = True
    answer = await caller.send(message)
    assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 20)
    message.descriptors[0].hits_addend.value = 2**64 - 1
    assert (await caller.send(message)).statuses[0].limit_remaining == 100


async def test_a_descriptor_may_bring_its_limit(caller: Caller) -> None:
    message = request("user=bob")
    message.descriptors[0].limit.requests_per_unit = 1
    message.descriptors[0].limit.unit = 4  # days
    answers = [await caller.send(message) for _ in range(2)]
    assert [answer.overall_code for answer in answers] == [OK, OVER]
    assert answers[0].statuses[0].current_limit.unit == UNITS["DAY"]


async def test_another_domain_passes(caller: Caller) -> None:
    assert (await caller.ask("user=bob", domain="elsewhere")).overall_code == OK


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (request("user=bob", domain=""), "domain: must not be empty"),
        (request(), "descriptors: must be from 1"),
        (request(*["user=x"] * (MAX_DESCRIPTORS + 1)), f"from 1 to {MAX_DESCRIPTORS}, not"),
        (RateLimitRequest(domain="edge", descriptors=[{}]), "descriptors[0].entries"),
        (request(",".join(["a=b"] * 33)), "descriptors[0].entries"),
        (
            RateLimitRequest(domain="edge", descriptors=[{"entries": [{"key": "a"}], "limit": {"unit": 99}}]),
            "limit.unit",
        ),
    ],
)
async def test_bad_requests_name_the_field(caller: Caller, message: Any, problem: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT") as refusal:
        await caller.send(message)
    assert problem in (refusal.value.details() or "")


async def test_garbage_is_the_callers_mistake(caller: Caller) -> None:
    send: Any = caller.channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await send(b"\xff\xff\xff garbage")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await caller.ask("user=bob")).statuses, "the next one is answered"


@pytest.mark.parametrize("value", ["", "ü" * 600, "a\0b", "\u2028", 'x"y', "\r\nSet-Cookie: a=b", "x" * 100_000])
async def test_any_value_is_limited(caller: Caller, value: str) -> None:
    message = request("user")
    message.descriptors[0].entries[0].value = value
    answers = [await caller.send(message) for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OVER]
    assert all(header.value.isprintable() for answer in answers for header in answer.response_headers_to_add)


async def test_many_at_once_are_counted_exactly(caller: Caller) -> None:
    answers = await asyncio.gather(*(caller.ask("route=/", "user=x" + str(number % 64)) for number in range(256)))
    assert [answer.overall_code for answer in answers].count(OK) == 100


@pytest.mark.parametrize(
    ("form", "names"),
    [("legacy", {"RateLimit-Limit": "2", "RateLimit-Remaining": "1"}), ("off", {})],
)
async def test_the_headers_can_be_chosen(rules: Path, form: str, names: dict[str, str]) -> None:
    async with served(create_app(settings(rules, envoy={"headers": form}))) as caller:
        shown = headers(await caller.ask("route=/", "user=bob"))
        reset = shown.pop("RateLimit-Reset", "60")
        assert shown == names
        assert 0 < int(reset) <= 60


# -- live changes ------------------------------------------------------------------------------------------------------


async def test_a_plan_takes_a_rules_place_while_envoy_asks(rules: Path) -> None:
    app = create_app(settings(rules))
    async with (
        served(app) as caller,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http,
    ):
        for _ in range(2):
            await caller.ask("user=bob")
        assert (await caller.ask("user=bob")).overall_code == OVER
        put = await http.put(
            "/admin/plans/edge.user", json={"algorithm": "fixed_window", "limit": 10, "window": "PT1M"}
        )
        assert put.status_code == 200
        answer = await caller.ask("user=bob")
        assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 7)
        await http.put("/admin/plans/edge.user", json={"algorithm": "token_bucket", "capacity": 60, "perSecond": 1})
        limit = (await caller.ask("user=eve")).statuses[0].current_limit
        assert (limit.requests_per_unit, limit.unit) == (60, UNITS["MINUTE"])
        assert (await http.delete("/admin/plans/edge.user")).status_code == 200
        assert (await caller.ask("user=new")).statuses[0].current_limit.requests_per_unit == 2


async def test_without_a_file_plans_are_rules_by_their_name(tmp_path: Path) -> None:
    app = create_app(settings(None, database_url=f"sqlite:///{tmp_path / 'plans.db'}"))
    async with (
        served(app) as caller,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http,
    ):
        assert (await caller.ask("user=bob")).overall_code == OK
        await http.put("/admin/plans/edge.user", json={"algorithm": "fixed_window", "limit": 1, "window": "PT1M"})
        assert [(await caller.ask("user=bob")).overall_code for _ in range(2)] == [OK, OVER]


def rewrite(rules: Path, old: str, new: str) -> None:
    rules.write_text(RULES.replace(old, new))


async def test_the_file_is_read_again_and_a_bad_one_changes_nothing(rules: Path) -> None:
    app = create_app(settings(rules))
    async with served(app) as caller:
        limits = []
        for old, new in (("unit: 100", "unit: 5000"), ("unit: hour", "unit: fortnight"), ("unit: 100", "unit: 7000")):
            rewrite(rules, old, new)
            await app.state.services.admission.plans.refresh()
            limits.append((await caller.ask("route=/")).statuses[0].current_limit.requests_per_unit)
        assert limits == [5000, 5000, 7000]
        assert app.state.services.registry.get_sample_value("envoy_config_rejections_total") == 1


async def test_answers_are_counted_by_rule(rules: Path) -> None:
    app = create_app(settings(rules))
    async with served(app) as caller:
        for _ in range(3):
            await caller.ask("user=bob", "free=x")
        await caller.ask("soft=x")
        await caller.ask("soft=x")
        sample = app.state.services.registry.get_sample_value
        assert sample("envoy_requests_total", {"outcome": "ok"}) == 4
        assert sample("envoy_requests_total", {"outcome": "over_limit"}) == 1
        for rule, outcome, count in (
            ("edge.user", "ok", 2),
            ("edge.user", "over_limit", 1),
            ("edge.free", "unlimited", 3),
            ("edge.soft", "shadow", 1),
        ):
            assert sample("envoy_descriptors_total", {"rule": rule, "outcome": outcome}) == count, rule


async def test_in_shadow_every_request_passes_and_shows_what_would_be_refused(rules: Path) -> None:
    app = create_app(settings(rules, envoy={"shadow": True}))
    async with served(app) as caller:
        answers = [await caller.ask("user=bob") for _ in range(3)]
        assert [answer.overall_code for answer in answers] == [OK, OK, OK]
        assert [answer.statuses[0].code for answer in answers] == [OK, OK, OVER]
        sample = app.state.services.registry.get_sample_value
        assert sample("envoy_requests_total", {"outcome": "shadow"}) == 1
        assert sample("envoy_descriptors_total", {"rule": "edge.user", "outcome": "over_limit"}) == 1


async def test_what_is_admitted_near_its_limit_is_counted(rules: Path) -> None:
    app = create_app(settings(rules))
    async with served(app) as caller:
        for _ in range(102):
            await caller.ask("route=/")
        assert app.state.services.registry.get_sample_value("envoy_near_limit_total", {"rule": "edge.route"}) == 20


# -- Redis -------------------------------------------------------------------------------------------------------------


@pytest.mark.redis
async def test_two_processes_with_one_redis_keep_one_count(rules: Path, redis_url: str) -> None:
    domain = f"edge-{uuid.uuid4().hex}"
    rewrite(rules, "domain: edge", f"domain: {domain}")
    apps = [create_app(settings(rules, redis_url=redis_url)) for _ in range(2)]
    async with served(apps[0]) as one, served(apps[1]) as other:
        asked = [
            caller.ask("route=/", f"user={number}", domain=domain) for number in range(80) for caller in (one, other)
        ]
        answers = await asyncio.gather(*asked)
        assert [answer.overall_code for answer in answers].count(OK) == 100
        assert not any(answer.statuses[0].code == OVER for answer in answers if answer.overall_code == OK)


@pytest.mark.redis
async def test_a_store_that_refuses_leaves_the_decision_to_envoy(rules: Path, redis_url: str) -> None:
    address = redis_url.rpartition("@")[2].removeprefix("redis://")
    app = create_app(settings(rules, redis_url=f"redis://nobody:wrong@{address}"))
    async with served(app) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await caller.ask("user=bob")
        assert (refusal.value.code(), refusal.value.details()) == (grpc.StatusCode.INTERNAL, "StoreRefused")
        counted = app.state.services.registry.get_sample_value
        assert counted("envoy_failures_total", {"error": "StoreRefused"}) == 1


def test_descriptors_of_a_domain_share_a_slot_of_a_cluster() -> None:
    rule = Rule("p", FixedWindow(1, "PT1S"))
    keys = [counted_key("edge", [("user", "{bob}")]), counted_key("edge", [("a", "b"), ("c", "x" * 5000)])]
    common_slot([Charge(key, rule) for key in keys])


# -- who may call ------------------------------------------------------------------------------------------------------


async def test_tokens_are_those_of_http(rules: Path, tmp_path: Path) -> None:
    given = settings(rules, api_token=TOKEN, database_url=f"sqlite:///{tmp_path / 'tokens.db'}")
    async with open_access_store(given) as store:
        reader, _ = await create_token(store, "reader", ["read"])
        assigner, _ = await create_token(store, "mesh", ["assign"])
    async with served(create_app(given)) as nobody:
        for token, code in ((None, "UNAUTHENTICATED"), ("wrong", "UNAUTHENTICATED"), (reader, "PERMISSION_DENIED")):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await Caller(nobody.channel, token).ask("user=bob")
            assert refusal.value.code().name == code
            assert token is None or token not in (refusal.value.details() or "")
        for token in (TOKEN, assigner):
            assert (await Caller(nobody.channel, token).ask("route=/")).overall_code == OK
        assert await nobody.health() == "SERVING"


async def test_guessing_is_slowed_down(rules: Path) -> None:
    given = settings(rules, api_token=TOKEN, ingress={"failures_per_minute": 1})
    async with served(create_app(given)) as nobody:
        codes = []
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await Caller(nobody.channel, "wrong").ask("user=bob")
            codes.append(refusal.value.code().name)
        assert codes == ["UNAUTHENTICATED", "RESOURCE_EXHAUSTED"]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:5000", ("192.0.2.7", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:[2001:db8::1]:5000", ("2001:db8::1", 5000)),
        ("unix:", None),
        ("unix:/run/envoy.sock", None),
    ],
)
def test_the_address_of_a_peer(peer: str, address: tuple[str, int] | None) -> None:
    assert _client(peer) == address


# -- health, TLS, settings ---------------------------------------------------------------------------------------------


async def test_health(caller: Caller) -> None:
    assert await caller.health() == "SERVING"
    assert await caller.health(SERVICE) == "SERVING"
    with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
        await caller.health("other")


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that is its own authority, for the server and the client."""
    folder = tmp_path_factory.mktemp("keys")
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
    )
    return folder


async def test_tls_and_certificates_of_clients(rules: Path, keys: Path) -> None:
    certificate, key = (keys / "cert.pem").read_bytes(), (keys / "key.pem").read_bytes()
    plain = {"cert_file": keys / "cert.pem", "key_file": keys / "key.pem"}
    for given, identity, answers in (
        (plain, False, True),
        (plain | {"ca_file": keys / "cert.pem"}, True, True),
        (plain | {"ca_file": keys / "cert.pem"}, False, False),
    ):
        app = create_app(settings(rules, grpc=given))
        async with app.router.lifespan_context(app):
            credentials = grpc.ssl_channel_credentials(
                certificate, key if identity else None, certificate if identity else None
            )
            address = f"localhost:{app.state.services.grpc_port}"
            async with grpc.aio.secure_channel(address, credentials) as channel:
                if answers:
                    assert (await Caller(channel).send(request("route=/"), timeout=30)).overall_code == OK
                else:
                    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                        await Caller(channel).send(request("route=/"), timeout=30)
            async with grpc.aio.insecure_channel(address) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                    await Caller(channel).send(request("route=/"), timeout=30)


@pytest.mark.parametrize(
    ("grpc_settings", "setting"),
    [
        ({"cert_file": "cert.pem"}, "PACELINE_GRPC_KEY_FILE"),
        ({"key_file": "key.pem"}, "PACELINE_GRPC_CERT_FILE"),
        ({"ca_file": "cert.pem"}, "PACELINE_GRPC_CA_FILE"),
        ({"cert_file": "missing.pem", "key_file": "key.pem"}, "PACELINE_GRPC_CERT_FILE"),
    ],
)
def test_half_a_certificate_is_refused(rules: Path, keys: Path, grpc_settings: dict[str, str], setting: str) -> None:
    paths = {name: keys / file for name, file in grpc_settings.items()}
    with pytest.raises(ConfigurationError) as refusal:
        check_grpc(settings(rules, grpc=paths), workers=1)
    assert refusal.value.field == setting


async def test_what_is_wrong_shows_before_the_start(rules: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="0 is another port in each worker"):
        check_grpc(settings(rules), workers=2)
    with pytest.raises(ConfigurationError, match="set PACELINE_GRPC_PORT"):
        check_grpc(Settings(envoy={"config": rules}), workers=1)
    with pytest.raises(ConfigurationError, match=r"missing\.yaml: can't be read"):
        check_grpc(settings(tmp_path / "missing.yaml"), workers=1)
    check_grpc(Settings(), workers=4)
    app = create_app(settings(rules))
    async with app.router.lifespan_context(app):
        taken = app.state.services.grpc_port
        with pytest.raises(PacelineError, match=f"port {taken}"):
            check_grpc(settings(rules, grpc={"port": taken}), workers=1)
