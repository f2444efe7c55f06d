"""`paceline serve`: the HTTP service."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from paceline.errors import ConfigurationError, PacelineError
from paceline.server import logs
from paceline.server.apps import check_apps
from paceline.server.cli.parameters import Command
from paceline.server.cli.read_only import missing_file
from paceline.server.cli.streams import OutputError, discard_unwritten
from paceline.server.cli.terminal import print_line, run
from paceline.server.settings import Settings
from paceline.server.shutdown import CLOSE_SECONDS, ShutdownDeadline
from paceline.server.wiring.access import oidc_provider, open_access_store, open_authenticator
from paceline.server.wiring.dispatch import load_own
from paceline.server.wiring.envoy import check_grpc
from paceline.server.wiring.requirements import require_extras
from paceline.server.wiring.slots import open_slots
from paceline.server.wiring.telemetry import collect_traces
from paceline.sql.migration_policy import Migrations, permit_migrations

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 2048


@click.command("serve", cls=Command)
@click.option("--host", help="The address to listen on; 127.0.0.1 by default.")
@click.option("--port", type=int, help="The port; 8080 by default, 0 for any that is free.")
@click.option("--grpc-port", type=int, help="The port of Envoy's rate limit service; not served by default.")
@click.option("--workers", type=int, help="How many processes share the work.")
@click.option("--migrate", is_flag=True, help="Migrate the database first, also one that other programs share.")
def serve(host: str | None, port: int | None, grpc_port: int | None, workers: int | None, migrate: bool) -> None:
    """Run the service until it is stopped (Ctrl+C, SIGTERM); requests in flight are finished first."""
    settings = Settings.load(host=host, port=port, grpc=None if grpc_port is None else {"port": grpc_port})
    permit(settings, migrate)
    workers = settings.http.workers if workers is None else workers
    if not 1 <= workers <= 256:
        raise ConfigurationError("--workers", "must be from 1 to 256")
    if workers > 1 and settings.database_url.startswith(("memory:", "sqlite://:", "sqlite:///:")):
        raise ConfigurationError("--workers", "needs a database that processes can share; set PACELINE_DATABASE_URL")
    for signum in (signal.SIGTERM, signal.SIGINT):
        # uvicorn shuts down on a signal and then raises it again: that is a clean exit.
        signal.signal(signum, _end)
    require_extras(settings, "server", serves=True)
    logs.configure(settings)
    collect_traces(settings)
    logs.warn_unknown_variables()
    check_grpc(settings, workers)
    run(_prepare(settings))
    listening = listen(settings.host, settings.port)
    try:
        if workers == 1:
            _serve_here(settings, listening)
        else:
            _serve_in_workers(settings, listening, workers)
    finally:
        listening.close()


def permit(settings: Settings, migrate: bool) -> None:
    """Lets this process migrate a database that other programs share, if `--migrate` was given."""
    if migrate or settings.database_migrate:
        permit_migrations(Migrations.ALWAYS)


async def _prepare(settings: Settings) -> None:
    """Migrates and makes the default config once, before any worker starts; an error is reported here, in one line."""
    check_apps(settings)
    load_own(settings)
    oidc_provider(settings)
    if missing_file(settings) is not None:
        # Before the file is made: a database that does not exist has no tokens.
        settings.refuse_exposure()
    async with open_access_store(settings) as access:
        settings.refuse_exposure(other_tokens=bool(await open_authenticator(settings, access).keyring()))
    async with open_slots(settings):
        pass


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address.

    Raises:
        PacelineError: The address is in use, or not permitted.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise PacelineError(f"can't listen on {host} port {port}: {reason}") from None
    listening.set_inheritable(True)
    return listening


def _serve_here(settings: Settings, listening: socket.socket) -> None:
    import uvicorn

    from paceline.server.http.app import create_app

    deadline = ShutdownDeadline(settings.http.shutdown_seconds + CLOSE_SECONDS)
    app = create_app(settings)

    class AnnouncingServer(uvicorn.Server):
        exits = asyncio.Event()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            deadline.arm()
            app.state.services.streams.end()
            super().handle_exit(sig, frame)
            if deadline.loop is not None:
                deadline.loop.call_soon_threadsafe(self.exits.set)

        async def main_loop(self) -> None:
            """uvicorn's own polls ten times per second whether to exit; here a signal wakes it."""
            tenths = 0
            while not await self.on_tick(tenths):
                tenths += 10
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self.exits.wait()

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            deadline.loop = asyncio.get_running_loop()
            await super().startup(sockets)
            _announce(listening, app.state.services.grpc_port)

    AnnouncingServer(_configuration(app, settings)).run([listening])


def _serve_in_workers(settings: Settings, listening: socket.socket, workers: int) -> None:
    import uvicorn.supervisors

    # Workers are new processes and read the environment, so the options must be there.
    os.environ["PACELINE_HOST"], os.environ["PACELINE_PORT"] = settings.host, str(settings.port)
    os.environ["PACELINE_HTTP_WORKERS"] = str(workers)
    if settings.grpc.port is not None:
        os.environ["PACELINE_GRPC_PORT"] = str(settings.grpc.port)
    counted = tempfile.mkdtemp(prefix="paceline-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = counted
    configuration = _configuration("paceline.server.http.app:from_environment", settings, workers)
    try:
        # From here on connections are queued for the workers instead of being refused.
        listening.listen(BACKLOG)
        _announce(listening, settings.grpc.port)
        uvicorn.supervisors.Multiprocess(configuration, sockets=[listening]).run()
    finally:
        shutil.rmtree(counted, ignore_errors=True)


def _configuration(app: object, settings: Settings, workers: int = 1) -> uvicorn.Config:
    import uvicorn

    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        factory=isinstance(app, str),
        workers=workers,
        http=_protocol(),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        # Without a trusted proxy, no forwarding header is used, not even from loopback.
        proxy_headers=bool(settings.http.trusted_proxies),
        forwarded_allow_ips=settings.http.trusted_proxies,
        backlog=BACKLOG,
        timeout_graceful_shutdown=settings.http.shutdown_seconds,
        # Longer than the keep-alive of proxies and clients (mostly 60 s): if the server closed first, a request on a
        # closing connection would be lost.
        timeout_keep_alive=75,
    )


def _protocol() -> Any:
    """The connection with limits or, if its parser is not installed, uvicorn's h11 protocol, which has a limit."""
    try:
        from paceline.server.http.connection import BoundedConnection
    except ModuleNotFoundError:
        return "h11"
    return BoundedConnection


def _announce(listening: socket.socket, grpc_port: int | None) -> None:
    host, port = listening.getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    soon = f"{datetime.now(UTC) + timedelta(minutes=1):%Y-%m-%dT%H:%M:00Z}"
    lines = [
        f"paceline is listening on {url}",
        "try it:",
        f"  curl -X POST {url}/api/v1/slots -H 'Content-Type: application/json' \\",
        f'''    -d '{{"eventId": "order-123", "configName": "default", "requestedTime": "{soon}"}}\'''',
    ]
    if grpc_port is not None:
        lines.append(f"Envoy's rate limit service is on {shown}:{grpc_port} (gRPC)")
    try:
        print_line("\n".join(lines))
    except OutputError:
        discard_unwritten()  # it serves all the same


def _end(_signum: int, _frame: object) -> NoReturn:
    sys.exit(0)
