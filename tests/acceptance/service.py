"""A paceline service in a process of its own, as an operator runs it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2 as httpx

from paceline.testing.waiting import pause

START_SECONDS = 180.0


def until(probe: Callable[[], Any], within: float = 60.0) -> Any:
    """The first truthy value of `probe`; the test fails if there is none in time."""
    began = probed = time.monotonic()
    while not (found := probe()):
        assert time.monotonic() < began + within, f"still {found!r} after {within:g} s"
        time.sleep(pause(began, probed))
        probed = time.monotonic()
    return found


class Service:
    """`paceline serve` on a free port; use it as a context, or `start` and `stop` it."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.directory = directory
        self._arguments = arguments
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.announced: list[str] = []

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "service.log").read_text()

    def command(self, *arguments: str) -> list[str]:
        """The command line of `paceline` with arguments."""
        return command(*arguments)

    def start(self) -> Service:
        """Returns when the service has logged where it listens."""
        with (self.directory / "service.log").open("a") as log:
            self._process = subprocess.Popen(
                self.command("serve", "--port", "0", *self._arguments),
                cwd=self.directory,
                env=environment(**self._environment),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pass_on, args=(self._process.stdout, lines), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        self.announced = []
        while len(self.announced) < 4:
            try:
                self.announced.append(lines.get(timeout=max(0.01, deadline - time.monotonic())).rstrip("\n"))
            except queue.Empty:
                self.stop()
                raise TimeoutError(f"did not start; its log:\n{self.log}") from None
            if self.announced[-1] == "":
                raise RuntimeError(f"ended instead of starting; its log:\n{self.log}")
        self.url = self.announced[0].rpartition(" ")[2]
        return self

    def signal(self, signum: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(signum)

    def wait(self) -> int:
        """The exit status."""
        assert self._process is not None
        status = self._process.wait(START_SECONDS)
        if self._process.stdout:
            self._process.stdout.close()
        return status

    def stop(self) -> int:
        """Ends it as an operator would, and returns its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self.signal()
        return self.wait()

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, **options)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "paceline", *arguments]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without its paceline settings, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return kept | variables


def run(
    directory: Path, *arguments: str, stdin: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=directory,
        env=environment(**variables),
        input=stdin,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )


def _pass_on(stream: Any, lines: queue.Queue[str]) -> None:
    try:
        for line in stream:
            lines.put(line)
    except ValueError:
        pass  # Closed while we were reading: the service has ended.
    lines.put("")
