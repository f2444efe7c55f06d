"""`paceline demo --chaos`: the same feed under faults, with a real worker process and a bank behind HTTP.

A worker is killed, the bank is down for five seconds, three answers in a hundred are lost, and the kill switch is
thrown and released, while a console shows all of it. It ends with the reconciliation against the bank's own record.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from paceline.dispatch.queue import DispatchQueue
from paceline.errors import PacelineError
from paceline.extras import require
from paceline_payments.downstream.server import SimulatorApp
from paceline_payments.downstream.simulator import Answer, Behaviour, Simulator
from paceline_payments.model import ITEM_TYPE
from paceline_payments.reconciliation.comparing import ReconciliationStore, reconcile
from paceline_payments.reconciliation.model import BankStatus, Difference, Kind, StatementLine
from paceline_payments.service.demo.report import Fault
from paceline_payments.service.shapes.reconciliation import ReconciliationShown

LOST_ANSWERS = 0.03
BANK_DOWN = 5.0
SWITCHED_OFF = 4.0
LOOK_SECONDS = 0.1
ACKNOWLEDGED = 1.0
"""Seconds after the kill switch was turned off, from which no new call leaves."""

Announce = Callable[[str], None]


class RecordingBank(Simulator):
    """A bank that keeps what it executed, for its statement."""

    def __init__(self, tps: int) -> None:
        super().__init__(Behaviour(tps=tps, lose=LOST_ANSWERS))
        self._lines: dict[str, StatementLine] = {}

    def receive(self, key: str | None, body: object) -> Answer:
        answer = super().receive(key, body)
        call = self.calls[-1]
        if call.executed and isinstance(body, dict):
            minor = int(str(body["amount"]).replace(".", ""))
            reference = self.executed[call.payment_id]
            self._lines[call.payment_id] = StatementLine(
                call.payment_id, minor, str(body["currency"]), BankStatus.EXECUTED, reference, None
            )
        return answer

    async def statement(self) -> AsyncIterator[list[StatementLine]]:
        """The payments that the bank executed."""
        yield list(self._lines.values())


def environment(url: str, config: str, tps: int, bank_url: str) -> dict[str, str]:
    """The variables of the demo's processes: none of the user's settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return {
        **own,
        "PACELINE_DATABASE_URL": url,
        "PACELINE_DISPATCH_WORKER": "worker",
        "PACELINE_PAYMENTS_WORKER": "worker",
        "PACELINE_PAYMENTS_CONFIG": config,
        "PACELINE_PAYMENTS_TPS": str(tps),
        "PACELINE_PAYMENTS_DOWNSTREAM_URL": bank_url,
    }


@asynccontextmanager
async def console(directory: Path, variables: Mapping[str, str]) -> AsyncIterator[str]:
    """The address of a console on the demo's database, while it is served by a process of its own.

    Raises:
        PacelineError: It does not start.
    """
    log = directory / "console.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline", "serve", "--port", "0"),
            cwd=directory,
            env={**variables, "PACELINE_LOG_LEVEL": "error"},
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        address = re.search(rb"http://\S+", await process.stdout.readline())
        if address is None:
            raise PacelineError(f"the demo's console does not start: {log.read_text()}")
        yield f"{address[0].decode()}/"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


class Worker:
    """A worker process, which can be killed and started again."""

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self._directory, self._environment = directory, variables
        self._process: asyncio.subprocess.Process | None = None
        self._log = directory / "worker.log"

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "paceline", "worker", "dispatch"),
                cwd=self._directory,
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    async def stop(self, signum: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)
            await self._process.wait()

    async def keep_alive(self) -> None:
        """Restarts the worker if it exits, as a service manager does."""
        while True:
            await asyncio.sleep(0.5)
            if self._process is not None and self._process.returncode is not None:
                await self.start()


@asynccontextmanager
async def served(bank: Simulator) -> AsyncIterator[str]:
    """The bank's address, while it is served in this process."""
    require("the demo's bank", "server")
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(SimulatorApp(bank), access_log=False, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


class Chaos:
    """The faults, and when: after shares of the payments, so that each hits a run at work."""

    def __init__(self, bank: RecordingBank, queue: DispatchQueue, worker: Worker) -> None:
        self._bank = bank
        self._queue = queue
        self._worker = worker
        self.late_calls = 0
        """Calls that arrived while the kill switch was off, more than a second after it was turned off."""
        self.faults: list[Fault] = []

    async def run(self, at: datetime, payments: int, announce: Announce) -> None:
        """Injects the faults, one after another."""
        await self._until_executed(0.15 * payments)
        announce("a worker is killed (SIGKILL), another one is started")
        killed = _since(at)
        self.faults.append(Fault("worker killed", killed, killed))
        await self._worker.stop(signal.SIGKILL)
        await self._worker.start()
        await self._until_executed(0.4 * payments)
        announce(f"the bank is down for {BANK_DOWN:.0f} s: every call is answered 503")
        down = _since(at)
        self._bank.behave(fail=1.0, lose=0.0)
        await asyncio.sleep(BANK_DOWN)
        self._bank.behave(fail=0.0, lose=LOST_ANSWERS)
        self.faults.append(Fault("bank down", down, _since(at)))
        announce("the bank is back")
        await self._until_executed(0.7 * payments)
        await self._queue.pause(ITEM_TYPE)
        off = _since(at)
        announce("the kill switch is thrown")
        await asyncio.sleep(ACKNOWLEDGED)
        before = len(self._bank.calls)
        await asyncio.sleep(SWITCHED_OFF - ACKNOWLEDGED)
        self.late_calls = len(self._bank.calls) - before
        await self._queue.resume(ITEM_TYPE)
        self.faults.append(Fault("kill switch thrown", off, _since(at)))
        announce(f"the kill switch is released; calls meanwhile: {self.late_calls}")

    async def _until_executed(self, payments: float) -> None:
        while len(self._bank.executed) < payments:  # noqa: ASYNC110 - the simulator knows no events
            await asyncio.sleep(LOOK_SECONDS)


def _since(at: datetime) -> float:
    return (datetime.now(UTC) - at).total_seconds()


async def compared(store: ReconciliationStore, bank: RecordingBank) -> ReconciliationShown:
    """The reconciliation with the bank's record."""
    lists: dict[Kind, list[Difference]] = defaultdict(list)
    result = await reconcile(store, bank.statement(), lambda one: lists[one.kind].append(one))
    return ReconciliationShown.of_result(result, lists)
