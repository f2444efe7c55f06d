"""Limits over TLS: a proxy in front of Redis speaks it, with a certificate made here."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from paceline import FixedWindow
from paceline.errors import StoreUnavailable
from paceline.limits.model import Charge, Rule
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.limits.stores.redis_blocking import RedisLimitStore

CHARGE = Charge("k", Rule("minute", FixedWindow(100, "PT1M")))


def certificate(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1 that is its own authority, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "paceline test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "redis.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return file


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (OSError, ssl.SSLError):
        pass
    finally:
        writer.close()


@pytest.fixture
async def tls_redis(redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """`rediss://…` and the authority's file."""
    where = urlsplit(redis_url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(where.hostname, where.port)
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

    file = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"rediss://127.0.0.1:{port}{where.path}", file


async def test_decisions_travel_encrypted(tls_redis: tuple[str, Path]) -> None:
    url, authority = tls_redis
    awaited = AsyncRedisLimitStore(f"{url}?ssl_ca_certs={authority}", deadline=30)
    decisions = await asyncio.gather(*(awaited.decide([CHARGE]) for _ in range(20)))
    assert decisions[-1].remaining == 80
    await awaited.close()

    def blocking() -> list[int]:
        store = RedisLimitStore(f"{url}?ssl_ca_certs={authority}", deadline=30)
        left = [store.decide([CHARGE]).remaining for _ in range(5)]
        store.close()
        return left

    assert await asyncio.to_thread(blocking) == [79, 78, 77, 76, 75]


async def test_a_stranger_is_not_trusted(tls_redis: tuple[str, Path]) -> None:
    url, _ = tls_redis
    awaited = AsyncRedisLimitStore(url, deadline=30)
    with pytest.raises(StoreUnavailable, match="certificate"):
        await awaited.decide([CHARGE])
    await awaited.close()
    with pytest.raises(StoreUnavailable, match="certificate"):
        await asyncio.to_thread(RedisLimitStore(url, deadline=30).decide, [CHARGE])
