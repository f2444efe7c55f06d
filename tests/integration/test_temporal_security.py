"""Temporal behind mutual TLS, as servers outside a laptop are."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from paceline.dispatch.engines.temporal.client import Security, connect
from paceline.errors import ConfigurationError, StoreUnavailable


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """An authority, and certificates of a server and a client signed by it."""

    def path(name: str) -> str:
        return str(tmp_path / name)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    authority = ("-x509", "-subj", "/CN=ca", "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl(*new, *authority, "-keyout", path("ca.key"), "-out", path("ca.pem"))
    # All extensions that RFC 5280 requires: Python checks them since 3.13.
    (tmp_path / "extensions").write_text(
        "subjectAltName=DNS:localhost\n"
        "basicConstraints=critical,CA:FALSE\n"
        "keyUsage=critical,digitalSignature\n"
        "extendedKeyUsage=serverAuth,clientAuth\n"
        "subjectKeyIdentifier=hash\n"
        "authorityKeyIdentifier=keyid\n"
    )
    for name in ("server", "client"):
        openssl(*new, "-keyout", path(f"{name}.key"), "-out", path(f"{name}.csr"), "-subj", f"/CN={name}")
        sign = ("x509", "-req", "-in", path(f"{name}.csr"), "-CA", path("ca.pem"), "-CAkey", path("ca.key"))
        openssl(*sign, "-CAcreateserial", "-extfile", path("extensions"), "-out", path(f"{name}.pem"), "-days", "2")
    return tmp_path


@asynccontextmanager
async def tls_in_front_of(address: str, keys: Path) -> AsyncIterator[str]:
    """Accepts connections of clients that have a certificate, and forwards their bytes."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(keys / "ca.pem"))
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")

    serving: set[asyncio.Task[None]] = set()

    async def hand_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(hand_on(reader, to_behind), hand_on(behind, writer))
        except (OSError, asyncio.CancelledError):
            pass  # either side closed, or the test is over
        finally:
            for end in (writer, to_behind):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
    try:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)


async def test_a_certificate_lets_in_and_nothing_else_does(temporal_address: str, keys: Path) -> None:
    mutual = Security(ca_file=keys / "ca.pem", cert_file=keys / "client.pem", key_file=keys / "client.key")
    async with tls_in_front_of(temporal_address, keys) as address:
        client = await connect(address, security=mutual)
        assert await client.service_client.check_health()
        for wrong in (Security(), Security(tls=True), Security(ca_file=keys / "ca.pem")):
            with pytest.raises(StoreUnavailable):
                await connect(address, security=wrong)


def test_what_is_missing_is_named(keys: Path) -> None:
    with pytest.raises(ConfigurationError, match="temporal_key_file: is not set"):
        Security(cert_file=keys / "client.pem").config()
    with pytest.raises(ConfigurationError, match=r"temporal_ca_file: .*nowhere.pem can't be read"):
        Security(ca_file=keys / "nowhere.pem").config()


def test_an_api_key_asks_for_tls_and_stays_out_of_sight() -> None:
    security = Security(api_key="s3cret")
    assert security.config() is True
    assert "s3cret" not in repr(security)
