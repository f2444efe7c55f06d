"""The life of a server: start, stop, kill, pause, and start again where it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

from paceline.testing.servers.account import Account
from paceline.testing.servers.failures import ServerFailed
from paceline.testing.servers.ports import PortClaim
from paceline.testing.servers.process_group import process_group
from paceline.testing.servers.reaper import family
from paceline.testing.waiting import pause

HOST = "127.0.0.1"
LOG_TAIL = 3_000
PORT_ATTEMPTS = 5


class Server:
    """A real server on a loopback port, with its data in a directory of its own.

    `start` returns once the server answers its own protocol. `stop` and `kill` end it and keep port and data, so that
    `start` brings the same server back; `close`, or leaving the `with` block, also removes the data. Whatever is still
    running when this process ends, even by SIGKILL, is killed and its directory removed. Calls block; in a coroutine
    use `asyncio.to_thread`.
    """

    name: ClassVar[str]
    ready_within: ClassVar[float] = 60.0
    stop_within: ClassVar[float] = 30.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._claims: list[PortClaim] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: set[int] = set()

    # What each kind of server overrides.

    def account(self) -> Account | None:
        """The account to run as; None for the current user."""
        return None

    def claim_ports(self) -> list[PortClaim]:
        return [PortClaim()]

    def prepare(self) -> None:
        """Fills the new directory, once; ports are known, but may change if the first start finds them taken."""

    def command(self) -> Sequence[str]:
        """The command line; called before each start, when directory and ports are known."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def answers(self) -> bool:
        """Whether this server, not another one on its port, answers its protocol. An exception counts as no."""
        raise NotImplementedError

    # Where it is.

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise ServerFailed(f"{self.name}: start it first")
        return self._directory

    @property
    def port(self) -> int:
        if not self._claims:
            raise ServerFailed(f"{self.name}: start it first")
        return self._claims[0].number

    @property
    def address(self) -> str:
        """`127.0.0.1:port`"""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name}: not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process lives (paused or not)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    def log_tail(self) -> str:
        """The end of what the server wrote."""
        try:
            return self.log_path.read_bytes()[-LOG_TAIL:].decode(errors="replace")
        except OSError:
            return ""

    # What can be done to it.

    def start(self) -> Self:
        """Starts it and returns when it answers; on the same port and data as before, if it ran before."""
        if self.running:
            raise ServerFailed(f"{self.name}: already running as process {self.pid}")
        if self._directory is not None:
            self._launch()
            return self
        self._directory = process_group.directory(f"paceline-{self.name}-", self.account())
        try:
            self._claims = self.claim_ports()
            self.prepare()
            self._launch_on_free_port()
        except BaseException:
            self.close()
            raise
        return self

    def _launch_on_free_port(self) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                self._launch()
                return
            except ServerFailed as failure:
                # Another program may bind the port between our check and the server's start.
                if attempt == PORT_ATTEMPTS or "address already in use" not in str(failure).lower():
                    raise
                self._release_ports()
                self._claims = self.claim_ports()

    def _launch(self) -> None:
        command = self.command()
        with self.log_path.open("ab") as log:
            self._process = process_group.start(
                command, directory=self.directory, log=log, environment=self.environment(), account=self.account()
            )
        try:
            self._wait_until(self._answers_or_died, self.ready_within, "did not answer")
        except BaseException:
            self.kill()
            raise

    def _answers_or_died(self) -> bool:
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            raise ServerFailed(f"{self.name}: exited with {status} while starting; its log ends:\n{self.log_tail()}")
        try:
            return self.answers()
        except Exception:
            return False

    def _wait_until(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        began = probed = time.monotonic()
        while not condition():
            if time.monotonic() > began + seconds:
                raise ServerFailed(f"{self.name}: {otherwise} within {seconds:g} s; its log ends:\n{self.log_tail()}")
            time.sleep(pause(began, probed))
            probed = time.monotonic()

    def stop(self) -> None:
        """Stops it gracefully, and kills it after a timeout. Does nothing if it is not running."""
        if self._process is None:
            return
        self.resume()
        members = self._members()
        self._process.send_signal(self.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.stop_within)
        self.kill()
        self._wait_until(lambda: not family(members), 30, "left processes behind")

    def kill(self) -> None:
        """SIGKILL, to it and all its children; returns when they are gone."""
        if self._process is None:
            return
        members = self._members() | self._paused
        self._paused = set()
        self._signal(members, signal.SIGKILL)
        self._process.wait()
        self._process = None
        self._wait_until(lambda: not family(members), 30, "left processes behind")

    def _members(self) -> set[int]:
        """Its process and all descendants; none once it has ended, when its pid may be reused."""
        return family([self.pid]) if self.running else set()

    def restart(self) -> Self:
        """Stops it gracefully and starts it on the same port with its data."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        # Stopped from the top down, so that no new child is missed: a stopped parent starts none.
        while fresh := family([self.pid]) - self._paused:
            self._signal(fresh, signal.SIGSTOP)
            self._paused |= fresh

    def resume(self) -> None:
        """SIGCONT: continues after `pause`."""
        self._signal(self._paused, signal.SIGCONT)
        self._paused = set()

    @staticmethod
    def _signal(pids: set[int], number: signal.Signals) -> None:
        for pid in sorted(pids):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _release_ports(self) -> None:
        for claim in self._claims:
            claim.release()
        self._claims = []

    def close(self) -> None:
        """Ends it, gives its port back and removes its data."""
        self.kill()  # no data to save: a graceful stop would only take longer
        self._release_ports()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
