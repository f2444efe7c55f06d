"""The gRPC server of a process: its port, TLS, health and shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from paceline.errors import ConfigurationError, PacelineError
from paceline.server.setting_sections import GrpcSettings
from paceline.server.settings import spelled

MAX_MESSAGE_BYTES = 256 * 1024


@asynccontextmanager
async def grpc_server(
    settings: GrpcSettings,
    host: str,
    handlers: Sequence[tuple[str, grpc.GenericRpcHandler]],
    *,
    shared: bool,
    closing_seconds: float,
) -> AsyncIterator[int]:
    """Serves the handlers, by the names of their services, and `grpc.health.v1.Health`. Yields the port.

    If it is `shared`, several processes may listen on the port. On exit it reports NOT_SERVING, rejects new calls, and
    lets calls in flight finish.

    Raises:
        ConfigurationError: the certificate or its key can't be read.
        PacelineError: the port is taken.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
    )
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_generic_rpc_handlers([handler for _, handler in handlers])
    credentials = await asyncio.to_thread(server_credentials, settings)
    address = f"[{host.strip('[]')}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"
    try:
        port = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError:
        raise PacelineError(f"can't listen for gRPC on {host} port {settings.port}; is the port taken?") from None
    await server.start()
    try:
        for service in ("", *(name for name, _ in handlers)):
            await checks.set(service, health_pb2.HealthCheckResponse.SERVING)
        yield port
    finally:
        await checks.enter_graceful_shutdown()
        await server.stop(closing_seconds)


def server_credentials(settings: GrpcSettings) -> grpc.ServerCredentials | None:
    """The certificate to serve with; `None` if the settings name none, so that calls are not encrypted.

    Raises:
        ConfigurationError: a file is missing or can't be read.
    """
    if settings.cert_file is None and settings.key_file is None:
        if settings.ca_file is not None:
            problem = f"needs {spelled('grpc', 'cert_file')} and {spelled('grpc', 'key_file')}, too"
            raise ConfigurationError(spelled("grpc", "ca_file"), problem)
        return None
    if settings.cert_file is None or settings.key_file is None:
        missing = "cert_file" if settings.cert_file is None else "key_file"
        raise ConfigurationError(spelled("grpc", missing), "is missing; a certificate and its key come together")
    pair = (_content(settings.key_file, "key_file"), _content(settings.cert_file, "cert_file"))
    authority = None if settings.ca_file is None else _content(settings.ca_file, "ca_file")
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def check_port(host: str, port: int) -> None:
    """Raises `PacelineError` if the port is taken. With SO_REUSEPORT, gRPC would share it silently."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise PacelineError(f"can't listen for gRPC on {host} port {port}: {error.strerror or error}") from None


def _content(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(spelled("grpc", setting), f"{path} can't be read: {error.strerror or error}") from None
