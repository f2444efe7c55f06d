"""Servers that require a client certificate: Redis, PostgreSQL, a bank, and Kafka, which requires a password, too.

`test_temporal_security.py` does so for Temporal. The packaged PostgreSQL and Redis are built without TLS, so each has
a TLS proxy in front of it; Kafka's is its own.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from paceline import FixedWindow, SlotScheduler, WindowPolicy
from paceline.errors import BrokerUnavailable, StoreUnavailable
from paceline.limits.model import Charge, Rule
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.messaging import Record
from paceline.server.settings import Settings
from paceline.server.wiring.doctor import kafka_info
from paceline.testing.servers.kafka import KafkaServer
from paceline.testing.servers.ports import PortClaim
from paceline_payments.downstream.client import HttpDownstream
from paceline_payments.downstream.connection import DownstreamConnection
from paceline_payments.ports import DownstreamBusy
from tests.unit.apps.payments.downstream.test_client import OpenGate, payment

HOST = "127.0.0.1"
CHARGE = Charge("k", Rule("minute", FixedWindow(100, "PT1M")))
SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
"""What a PostgreSQL client sends before TLS begins."""
PASSWORD = "a-password-for-kafka"


class Keys(NamedTuple):
    """Files: the authority, and a key with its certificate for the server, for a client, and for a stranger."""

    authority: Path
    server: Path
    client: Path
    stranger: Path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    authority, other = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 2048)
    root = certificate("authority", authority, "authority", authority, is_authority=True)
    (folder / "authority.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    for name, signer in (("server", authority), ("client", authority), ("stranger", other)):
        key = rsa.generate_private_key(65537, 2048)
        made = certificate(name, key, "authority", signer)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = folder / f"{name}.pem"
        file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
        file.chmod(0o600)
    return Keys(*(folder / f"{name}.pem" for name in Keys._fields))


def certificate(
    name: str, key: rsa.RSAPrivateKey, issuer: str, signer: rsa.RSAPrivateKey, *, is_authority: bool = False
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(named(issuer), named(name), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )


def mutual(keys: Keys) -> ssl.SSLContext:
    """A server-side context that requires a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.server)
    context.load_verify_locations(keys.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def tls_in_front(url: str, keys: Keys, *, postgres: bool = False) -> AsyncIterator[int]:
    """The port of a TLS end point in front of a server."""
    where = urlsplit(url)
    context = mutual(keys)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (OSError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if postgres:
                assert await reader.readexactly(8) == SSL_REQUEST, "a client that speaks without TLS"
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(context)
        except (OSError, ssl.SSLError, AssertionError, asyncio.IncompleteReadError):
            writer.close()
            return
        inner_reader, inner_writer = await asyncio.open_connection(where.hostname, where.port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(serve, HOST, 0, ssl=None if postgres else context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_redis_asks_for_our_certificate(redis_url: str, keys: Keys) -> None:
    async with tls_in_front(redis_url, keys) as port:
        url = f"rediss://{HOST}:{port}{urlsplit(redis_url).path}?ssl_ca_certs={keys.authority}"
        store = AsyncRedisLimitStore(f"{url}&ssl_certfile={keys.client}", deadline=30)
        assert (await store.decide([CHARGE])).remaining == 99
        await store.close()
        for wrong in (url, f"{url}&ssl_certfile={keys.stranger}"):
            refused = AsyncRedisLimitStore(wrong, deadline=30)
            with pytest.raises(StoreUnavailable):
                await refused.decide([CHARGE])
            await refused.close()


async def test_postgresql_asks_for_our_certificate(postgres_url: str, keys: Keys) -> None:
    async with tls_in_front(postgres_url, keys, postgres=True) as port:
        where = urlsplit(postgres_url)
        url = f"postgresql://{where.username}@{HOST}:{port}{where.path}"
        url += f"?gssencmode=disable&sslmode=verify-full&sslrootcert={keys.authority}"
        async with SlotScheduler.open(f"{url}&sslcert={keys.client}&sslkey={keys.client}") as slots:
            await slots.configure("c", WindowPolicy(10, "PT1S"))
            slot = await slots.assign("e", "c", "2031-03-01T16:00:00Z")
            assert slot.event_id == "e"
        for wrong in (url, f"{url}&sslcert={keys.stranger}&sslkey={keys.stranger}"):
            with pytest.raises(StoreUnavailable):
                async with SlotScheduler.open(wrong):
                    pass


async def test_the_payments_bank_asks_for_our_certificate(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(keys.authority))
    callers: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"}}")
            (((_, name),),) = writer.get_extra_info("peercert")["subject"]
            callers.append(name)
            writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0, ssl=mutual(keys)) as server:
        url = f"https://{HOST}:{server.sockets[0].getsockname()[1]}"
        for file, is_trusted in ((keys.client, True), (keys.stranger, False)):
            bank = HttpDownstream(DownstreamConnection(url, client_cert=file, attempts=1, verdict="status"), OpenGate())
            with nullcontext() if is_trusted else pytest.raises(DownstreamBusy):
                await bank.pay(payment())
            await bank.close()
    assert callers == ["client"]


class SecureKafka(KafkaServer):
    """A broker with one more listener, for certificates and passwords."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys

    def claim_ports(self) -> list[PortClaim]:
        return [*super().claim_ports(), PortClaim()]

    @property
    def secure(self) -> str:
        return f"{HOST}:{self._claims[2].number}"

    def _write_configuration(self) -> str:
        broker, controller, secure = (f"{HOST}:{claim.number}" for claim in self._claims)
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        self._settings |= {
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller},SASL_SSL://{secure}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keys.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._keys.authority),
            "ssl.client.auth": "required",
            "listener.name.sasl_ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{login} user_paceline="{PASSWORD}";',
        }
        claims, self._claims = self._claims, self._claims[:2]
        try:
            return super()._write_configuration()
        finally:
            self._claims = claims


@pytest.fixture(scope="module")
def secure_kafka(keys: Keys) -> Iterator[SecureKafka]:
    with SecureKafka(keys) as running:
        yield running


def kafka_settings(kafka: SecureKafka, keys: Keys, **changes: str) -> Settings:
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "paceline",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(keys.authority),
        "ssl.certificate.location": str(keys.client),
        "ssl.key.location": str(keys.client),
    }
    return Settings(kafka_bootstrap=kafka.secure, kafka_config=json.dumps(config | changes))


@pytest.mark.kafka
async def test_kafka_asks_for_our_certificate_and_password(secure_kafka: SecureKafka, keys: Keys) -> None:
    from paceline.kafka.log import KafkaLog

    settings = kafka_settings(secure_kafka, keys)
    assert settings.kafka_bootstrap is not None
    log = KafkaLog(settings.kafka_bootstrap, topics=("secured",), settings=settings.kafka_config)
    assert await log.publish([Record("secured", "k", "hello")]) == [None]
    await log.close()
    assert (await kafka_info(settings, timeout=30)).brokers == 1, "doctor uses the same settings"
    stranger = str(keys.stranger)
    refused = [
        {"sasl.password": "wrong"},
        {"ssl.certificate.location": stranger, "ssl.key.location": stranger},
        {"security.protocol": "PLAINTEXT"},
    ]
    # A client that is refused connects again at once, and again: each time costs the broker a TLS handshake.
    patient = {"reconnect.backoff.ms": "10000"}
    asked = (kafka_info(kafka_settings(secure_kafka, keys, **changes, **patient), timeout=5) for changes in refused)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [BrokerUnavailable] * len(refused)
    assert PASSWORD in settings.secrets()
