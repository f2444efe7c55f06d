"""Runs the code blocks of a document, as a reader would type them.

- `bash` blocks run in order in one folder and keep what they export. A line `make run` or `headgate serve …` starts a
  real service beside them, `headgate worker …` a real worker; the documents' port 8080 becomes a free one.
- `python` blocks with a title (`python title="greet.py"`) are saved under it, for a later block to run; others are run.
- A `json` or `text` block shows what the block before it printed. In text `…` stands for anything. In JSON a time is
  right when it is less than a minute away, `delayMs` when it is a number: where in its window a slot lies is random.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests import warm_start
from tests.acceptance.service import Service, command, environment

PATIENCE = 240.0
"""Seconds for one block: a few commands take a few seconds, and a minute on a machine that is very busy."""
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORK = re.compile(r"^headgate worker\b(.*)$")
SERVE = re.compile(r"^(?:make run|headgate serve\b(.*))$", re.MULTILINE)
INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")


class Block(NamedTuple):
    """A fenced block of a document."""

    line: int
    language: str
    title: str | None
    text: str


def blocks(document: Path) -> list[Block]:
    """Every fenced block, in order."""
    text = document.read_text("utf-8")
    found = [
        Block(text.count("\n", 0, match.start()) + 1, match[1], match[2], match[3]) for match in BLOCK.finditer(text)
    ]
    fences = sum(line.startswith("```") for line in text.splitlines())
    assert 2 * len(found) == fences, f"{document.name} has a block without a language, or an unknown form of one"
    return found


class Reader:
    """Somebody who follows a document word for word; use it as a context."""

    def __init__(self, directory: Path, *, replaced: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        (directory / ".typed").mkdir()
        warm_start.command_on_path("headgate", "headgate", directory / ".typed")
        folders = [str(directory / ".typed"), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = environment(PATH=os.pathsep.join(folders))
        self._port = _free_port()
        self._replaced = {"127.0.0.1:8080": f"127.0.0.1:{self._port}", **(replaced or {})}
        self._services: list[Service] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._saved: set[str] = set()
        self._out = self._all = ""
        # What `make run` leaves in the clone.
        (directory / ".venv").symlink_to(sys.prefix)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        while self._workers:
            worker = self._workers.pop()
            worker.terminate()
            worker.wait(PATIENCE)

    def follow(self, block: Block) -> None:
        """Does what the block says, or checks what it shows."""
        text = block.text
        for shown, real in self._replaced.items():
            text = text.replace(shown, real)
        match block.language:
            case "bash":
                self._type(text)
            case "python" if block.title:
                (self._directory / block.title).write_text(text)
                self._saved.add(block.title)
            case "python":
                self._run([sys.executable, "-c", text])
            case "json":
                assert_alike(json.loads(text), json.loads(self._out))
            case "text":
                assert_matches(text, self._all)
            case other:
                raise AssertionError(f"a block in {other!r}: use bash, python, json or text, which are checked")

    @property
    def unused(self) -> set[str]:
        """Files that were saved and never run."""
        return self._saved

    def _type(self, text: str) -> None:
        self._saved = {name for name in self._saved if name not in text and Path(name).stem not in text}
        if working := WORK.match(text.strip()):
            with (self._directory / "worker.log").open("a") as log:
                arguments = command("worker", *working[1].split())
                self._workers.append(
                    warm_start.popen(arguments, cwd=self._directory, env=self._environment, stdout=log, stderr=log)
                )
            return
        served = SERVE.search(text)
        if served is None:
            self._run(["bash", "-euo", "pipefail", "-c", f"{text}\nenv -0 > .environment"])
            pairs = (self._directory / ".environment").read_text().split("\0")
            self._environment = dict(pair.split("=", 1) for pair in pairs if pair)
            return
        before, after = text[: served.start()], text[served.end() :]
        assert not after.strip(), "whatever follows `headgate serve` in a block would never be typed"
        if before.strip():
            self._type(before)
        self._stop()
        arguments = [*(served[1] or "").split(), "--port", str(self._port)]
        given = {name: value for name, value in self._environment.items() if name.startswith(("HEADGATE_", "PATH"))}
        service = Service(self._directory, *arguments, **given).start()
        self._services.append(service)
        self._out = self._all = "\n".join(service.announced) + "\n"

    def _run(self, typed: list[str]) -> None:
        started = {"cwd": self._directory, "env": self._environment, "timeout": PATIENCE}
        if typed[0] == sys.executable:
            ended = warm_start.run(typed, **started)
        else:
            ended = subprocess.run(typed, capture_output=True, text=True, check=False, **started)
        self._out, self._all = ended.stdout, ended.stdout + ended.stderr
        assert ended.returncode == 0, f"status {ended.returncode}\n{self._all}"

    def _stop(self) -> None:
        while self._services:
            self._services.pop().stop()


def assert_alike(shown: Any, real: Any, where: str = "") -> None:
    """Whether two JSON values say the same, but for what differs from run to run."""
    if isinstance(shown, dict) and isinstance(real, dict):
        assert list(shown) == list(real), f"members differ{where}: {list(shown)} is shown, {list(real)} came"
        for name in shown:
            assert_alike(shown[name], real[name], f" in {name}")
    elif isinstance(shown, list) and isinstance(real, list):
        assert len(shown) == len(real), f"lengths differ{where}"
        for one, other in zip(shown, real, strict=True):
            assert_alike(one, other, where)
    elif isinstance(shown, str) and INSTANT.match(shown) and not shown.endswith(":00.000Z"):
        apart = datetime.fromisoformat(real) - datetime.fromisoformat(shown)
        assert abs(apart.total_seconds()) < 60, f"{shown} is shown{where}, {real} came"
    elif where == " in delayMs":
        assert isinstance(real, int)
    else:
        assert shown == real, f"{shown!r} is shown{where}, {real!r} came"


def assert_matches(shown: str, real: str) -> None:
    """Whether a shown text is what came; a line `…` stands for any number of lines, `…` in a line for anything."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in shown.splitlines()
    )
    assert re.fullmatch(pattern, real), f"this is shown:\n{shown}\nand this came:\n{real}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
