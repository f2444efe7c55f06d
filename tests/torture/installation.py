"""The whole installation: servers, services, workers, and a link between each two that talk."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx2 as httpx

from paceline.testing import eventually
from paceline.testing.servers.kafka import KafkaServer
from paceline.testing.servers.ports import PortClaim
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.redis import RedisServer
from paceline.testing.servers.server import Server
from tests.torture.faults import PlannedFault
from tests.torture.links import Link
from tests.torture.steps import LOG

ROOT = Path(__file__).parents[2]
PACELINE = ("-m", "paceline")
DATABASE = "torture"
TPS = 12
CALL_TIMEOUT = 3
START_WITHIN = 120.0

PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "service-1": (("serve",), ("postgres", "redis")),
    "service-2": (("serve",), ("postgres", "redis")),
    "dispatcher-1": (("worker", "dispatch"), ("postgres", "redis", "bank")),
    "dispatcher-2": (("worker", "dispatch"), ("postgres", "redis", "bank")),
    "sender-1": (("worker", "sender"), ("postgres", "redis", "provider")),
    "sender-2": (("worker", "sender"), ("postgres", "redis", "provider")),
    "tasks-1": (("worker", "tests.torture.steps:tasks"), ("postgres",)),
    "tasks-2": (("worker", "tests.torture.steps:tasks"), ("postgres",)),
}
"""By name: the command, and what it talks to over links of its own. All of them share one link to Kafka."""
SERVICES = ("service-1", "service-2")
CLIENT = "client>postgres"
"""The link of the clients that enqueue tasks."""


class Installation:
    """Starts and ends everything. `begin` and `end` are the faults."""

    def __init__(self, directory: Path, seed: int, *, redis: bool = True) -> None:
        self.directory = directory
        self.redis = redis
        """Without it, limits, permits and quotas are in PostgreSQL."""
        self.links: dict[str, Link] = {}
        self.servers: dict[str, Server] = {}
        self._seed = seed
        self._stack = AsyncExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, PortClaim] = {}
        self._killed: set[str] = set()
        """Programs that a fault keeps dead."""

    async def __aenter__(self) -> Installation:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        kafka = await self._link("kafka")
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{kafka.port}"}
        self.servers = {
            "postgres": PostgresServer(),
            "kafka": KafkaServer(settings=advertised),
        }
        if self.redis:
            self.servers["redis"] = RedisServer()
        for server in self.servers.values():
            self._stack.push_async_callback(asyncio.to_thread, server.close)
        async with asyncio.TaskGroup() as group:
            for server in self.servers.values():
                group.create_task(asyncio.to_thread(server.start))
        kafka.upstream = self.servers["kafka"].port
        postgres = self.servers["postgres"]
        assert isinstance(postgres, PostgresServer)
        self.database_url = await asyncio.to_thread(postgres.databases.create, DATABASE)
        ports = {name: server.port for name, server in self.servers.items()}
        ports["bank"], ports["provider"] = await asyncio.to_thread(self._start_counterparties)
        for name, (_, peers) in PROGRAMS.items():
            for peer in peers:
                if peer in ports:
                    await self._link(f"{name}>{peer}", ports[peer])
        await self._link(CLIENT, ports["postgres"])
        for name in SERVICES:
            self._ports[name] = PortClaim()
            self._stack.callback(self._ports[name].release)
        await asyncio.to_thread(self._run_to_the_end, "migrate", "up")
        for name in PROGRAMS:
            self.start(name)
            self._stack.push_async_callback(asyncio.to_thread, self._stop, name)
        async with httpx.AsyncClient() as client:
            for url in self.services:
                await eventually(lambda url=url: _answers(client, url), within=START_WITHIN)  # type: ignore[misc]

    async def _link(self, name: str, upstream: int = 0) -> Link:
        # A call to the bank whose caller has timed out must not arrive later: no program could keep a limit then.
        self.links[name] = link = await Link(name, drops_late=name.endswith(">bank")).open(upstream)
        self._stack.push_async_callback(link.close)
        return link

    def _start_counterparties(self) -> tuple[int, int]:
        command = [sys.executable, "-m", "tests.torture.counterparties", "--seed", str(self._seed)]
        process = subprocess.Popen(
            [*command, "--log", str(self.log("counterparties"))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._stack.callback(_end, process)
        bank, provider = process.stdout.readline().split()
        return int(bank), int(provider)

    def log(self, name: str) -> Path:
        """A log of what happened; the history is all of them."""
        return self.directory / f"{name}.jsonl"

    @property
    def services(self) -> list[str]:
        return [f"http://127.0.0.1:{claim.number}" for claim in self._ports.values()]

    # -- programs ------------------------------------------------------------------------------------------------------

    def _environment(self, name: str) -> dict[str, str]:
        def via(peer: str) -> str:
            return f"127.0.0.1:{self.links[f'{name}>{peer}'].port}"

        kept = {key: value for key, value in os.environ.items() if not key.startswith("PACELINE_")}
        peers = PROGRAMS[name][1]
        variables = {
            "DATABASE_URL": f"postgresql://postgres@{via('postgres')}/{DATABASE}",
            "KAFKA_BOOTSTRAP": f"127.0.0.1:{self.links['kafka'].port}",
            "LIMITS_ON_ERROR": "closed",
            # Machines that do everything at once are slow.
            "LIMITS_DEADLINE_SECONDS": "6",
            "SMS_REDIS_TIMEOUT_SECONDS": "6",
            "PAYMENTS_TPS": str(TPS),
            "PAYMENTS_DOWNSTREAM_TIMEOUT": str(CALL_TIMEOUT),
            "PAYMENTS_WORKER": "worker",
            "DISPATCH_WORKER": "worker",
            "SMS_SENDER": "worker",
            "SMS_ON_UNKNOWN": "resend",
            "LOG_LEVEL": "warning",
        }
        if "redis" in peers and self.redis:
            variables["REDIS_URL"] = f"redis://{via('redis')}/0"
        # Services call neither; but without an address they would take a simulator for the bank.
        variables["PAYMENTS_DOWNSTREAM_URL"] = f"http://{via('bank') if 'bank' in peers else '127.0.0.1:9'}"
        variables["SMS_WEBHOOK_URL"] = f"http://{via('provider') if 'provider' in peers else '127.0.0.1:9'}/sms"
        own = {f"PACELINE_{key}": value for key, value in variables.items()}
        return kept | own | {"PYTHONPATH": str(ROOT), LOG: str(self.log("executions"))}

    def start(self, name: str) -> None:
        command = [*PACELINE, *PROGRAMS[name][0]]
        if name in self._ports:
            command += ["--port", str(self._ports[name].number)]
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *command], cwd=self.directory, env=self._environment(name), stdout=log, stderr=log
            )

    def _run_to_the_end(self, *arguments: str) -> None:
        environment = self._environment("service-1")
        done = subprocess.run(
            [sys.executable, *PACELINE, *arguments],
            cwd=self.directory,
            env=environment,
            timeout=START_WITHIN,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"paceline {' '.join(arguments)}: {done.stderr}")

    def _stop(self, name: str) -> None:
        process = self._processes[name]
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def supervise(self, note: Callable[[str, int], None]) -> None:
        """Starts what ended by itself again, as a supervisor does: a program that finds no database ends. `note` is
        called with its name and exit status."""
        while True:
            await asyncio.sleep(1.0)
            for name, process in self._processes.items():
                if name not in self._killed and (status := process.poll()) is not None:
                    note(name, status)
                    self.start(name)

    def core_waits(self) -> dict[tuple[str, int], float]:
        """By program and process: seconds for which it was ready to run while others had the cores, since it began."""
        waits = {}
        for name, process in self._processes.items():
            with suppress(OSError):  # it ended, or this is no Linux
                fields = Path(f"/proc/{process.pid}/schedstat").read_text().split()
                waits[name, process.pid] = int(fields[1]) / 1e9
        return waits

    # -- faults --------------------------------------------------------------------------------------------------------

    async def begin(self, fault: PlannedFault) -> None:
        if fault.target in self.links:
            link = self.links[fault.target]
            match fault.what:
                case "slow":
                    link.slow(fault.delay)
                case "silence":
                    link.silence()
                case "cut":
                    # Slow first, so that something is on its way when callers are reset.
                    link.slow(fault.delay)
                    await asyncio.sleep(fault.delay)
                    link.cut()
        elif fault.target in self.servers:
            server = self.servers[fault.target]
            await asyncio.to_thread(server.kill if fault.what == "kill" else server.pause)
        else:
            if fault.what == "kill":
                self._killed.add(fault.target)
            self._processes[fault.target].send_signal(signal.SIGKILL if fault.what == "kill" else signal.SIGSTOP)

    async def end(self, fault: PlannedFault) -> None:
        if fault.target in self.links:
            self.links[fault.target].heal()
        elif fault.target in self.servers:
            server = self.servers[fault.target]
            await asyncio.to_thread(server.start if fault.what == "kill" else server.resume)
        elif fault.what == "kill":
            await asyncio.to_thread(self._processes[fault.target].wait)
            self.start(fault.target)
            self._killed.discard(fault.target)
        else:
            self._processes[fault.target].send_signal(signal.SIGCONT)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health/live")).status_code == 200
    except httpx.TransportError:
        return False
