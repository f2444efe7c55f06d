"""Runs the code blocks of a document, as a reader would type them in an empty folder.

- `bash` blocks run in order in one folder and keep what they export. A last line that keeps running (`make run`,
  `paceline serve`, `paceline worker`, `uvicorn`, …) is started beside them, for real.
- A block with a title (`python title="greet.py"`, `toml title="rules.toml"`) is saved under it for a later block.
  Other `python` blocks are whole programs and are run.
- A `json` or `text` block shows what the block before it printed. In text `…` stands for anything. In JSON a time is
  right when it is less than a minute away, `delayMs` when it is a number: where in its window a slot lies is random.
- `<!-- not run: reason -->` in the line before a block leaves it out; `test_blocks_that_are_not_run_are_known` lists
  these.
- `<!-- peer: name -->` marks a program of another library: it is run where that library is installed (`make bench`
  installs them), and only compiled where it is not.

The example hosts of `HOSTS` and the ports of `PORTS` become real test servers and free ports. Nothing else is replaced.
`pip install` is uv's, which takes a hundredth of the time. It finds what is installed already: it downloads nothing,
and a missing extra fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.acceptance.service import Service, environment, until

TIMEOUT = 240.0
"""Seconds for one block: a few commands take a few seconds, and a minute on a machine that is very busy."""
HOSTS = {
    "postgresql://paceline:secret@db/paceline": "empty_postgres_url",
    "redis://cache": "redis_url",
    "temporal:7233": "temporal_frontend",
    "kafka:9092": "kafka_bootstrap",
    "http://collector:4318": "trace_collector",
    "smsc:2775": "smsc_address",
    "http://llm:8000": "llm_provider",
}
"""The servers that documents name, and the fixture that is put in each one's place."""
PORTS = (8000, 8080, 8081, 9090, 10000)
"""The ports that documents name, as `127.0.0.1:N`, `--port N`, `--grpc-port N` or `port_value: N`; each becomes a free
one."""
BLOCK = re.compile(
    r"^(?:<!-- (not run|peer): ([^\n]+) -->\n)?```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
SERVE = re.compile(r"^(?:make run|paceline serve\b(.*))$", re.MULTILINE)
KEEPS_RUNNING = re.compile(
    r"^(?:paceline worker|uvicorn|celery|envoy -c|python -m paceline_payments\.downstream)\b.*$", re.MULTILINE
)
INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
READ_BY_ITSELF = {"paceline.toml", "pyproject.toml"}
"""Files that are read without being named."""
PIP = """#!/bin/sh
command=$1; shift
exec {uv} pip "$command" --python {python} --no-config --no-index --dry-run "$@"
"""


class Block(NamedTuple):
    """A fenced block of a document."""

    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None = None
    """Why it can't be run here."""
    peer: str | None = None
    """The library it shows, which is not paceline."""


def blocks(document: Path) -> list[Block]:
    """Every fenced block, in order."""
    text = document.read_text("utf-8")
    found = []
    for match in BLOCK.finditer(text):
        mark, value, language, title, code = match.groups()
        marks = {"not_run": value if mark == "not run" else None, "peer": value if mark == "peer" else None}
        found.append(Block(text.count("\n", 0, match.start(3)) + 1, language, title, code, **marks))
    return found


def assert_every_block_is_read(document: Path) -> None:
    """Whether `blocks` sees every fence: a block without a language, or in a list, would else be passed by."""
    fences = sum(line.lstrip().startswith("```") for line in document.read_text("utf-8").splitlines())
    assert 2 * len(blocks(document)) == fences, f"{document.name} has a block without a language, or indented"


def hosts(document: Path) -> dict[str, str]:
    """The part of `HOSTS` that the blocks of a document name."""
    typed = "\n".join(block.text for block in blocks(document) if not block.not_run)
    return {shown: fixture for shown, fixture in HOSTS.items() if shown in typed}


class Reader:
    """A reader that follows a document literally; use it as a context manager."""

    def __init__(self, directory: Path, *, replaced: Mapping[str, str] | None = None, **variables: str) -> None:
        self._directory = directory
        (directory / ".typed").mkdir()
        _pip_on_path(directory / ".typed")
        folders = [str(directory / ".typed"), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = environment(PATH=os.pathsep.join(folders), **variables)
        self._ports = {shown: _free_port() for shown in PORTS}
        self._replaced = {**(replaced or {})}
        for shown, real in self._ports.items():
            for before in ("127.0.0.1:", "--port ", "--grpc-port ", "port_value: "):
                self._replaced[f"{before}{shown}"] = f"{before}{real}"
        self._services: list[Service] = []
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
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
        while self._running:
            _, process = self._running.pop()
            process.terminate()
            process.wait(TIMEOUT)

    def follow(self, block: Block) -> None:
        """Runs the block, or compares it with the last output."""
        if block.not_run:
            return
        text = block.text
        for shown, real in self._replaced.items():
            text = text.replace(shown, real)
        if block.peer and importlib.util.find_spec(block.peer) is None:
            if block.language == "python":
                compile(text, block.title or block.peer, "exec")
            return
        if block.language in ("bash", "python", "toml"):
            self._saved = {name for name in self._saved if Path(name).stem not in text}
        match block.language:
            case _ if block.title:
                path = self._directory / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                self._saved.add(block.title)
            case "bash":
                self._type(text)
            case "python":
                self._run([sys.executable, "-c", text])
            case "json":
                assert_alike(json.loads(text), json.loads(self._out))
            case "text":
                # A library's warning on standard error need not be shown.
                printed = self._out if matches(text, self._out) else self._all
                assert matches(text, printed), f"this is shown:\n{text}\nand this came:\n{printed}"
            case other:
                raise AssertionError(f"a block in {other!r}: use bash, python, json or text, which are checked")
        for typed, process in self._running:
            assert process.poll() is None, f"{typed!r} has ended:\n{self._log.read_text()}"

    @property
    def unused(self) -> set[str]:
        """Files that were saved and never used."""
        return self._saved - READ_BY_ITSELF

    @property
    def _log(self) -> Path:
        return self._directory / "running.log"

    def _type(self, text: str) -> None:
        if served := SERVE.search(text):
            self._begin(text, served)
            self._stop()
            # The service's own `--port 0` comes first: the last one given is the one that counts.
            arguments = [*(served[1] or "").split(), "--port", str(self._ports[8080])]
            service = Service(self._directory, *arguments, **self._environment).start()
            self._services.append(service)
            self._out = self._all = "\n".join(service.announced) + "\n"
        elif left := KEEPS_RUNNING.search(text):
            self._begin(text, left)
            with self._log.open("a") as log:
                process = subprocess.Popen(
                    ["bash", "-c", f"exec {left[0]}"],
                    cwd=self._directory,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                )
            self._running.append((left[0], process))
            if port := re.search(r"--port (\d+)", left[0]):
                until(lambda: process.poll() is not None or _listens(int(port[1])))
        else:
            assert_extras_exist(text)
            self._run(["bash", "-euo", "pipefail", "-c", f"{text}\nenv -0 > .environment"])
            pairs = (self._directory / ".environment").read_text().split("\0")
            self._environment = dict(pair.split("=", 1) for pair in pairs if pair)
            # A document puts the clone's programs first; our `pip` installs nothing.
            self._environment["PATH"] = os.pathsep.join([str(self._directory / ".typed"), self._environment["PATH"]])

    def _begin(self, text: str, last: re.Match[str]) -> None:
        """Runs the lines before one that keeps running."""
        assert not text[last.end() :].strip(), f"whatever follows {last[0]!r} in a block would never be typed"
        if before := text[: last.start()].strip():
            self._type(before)

    def _run(self, typed: list[str]) -> None:
        started: dict[str, Any] = {"cwd": self._directory, "env": self._environment, "timeout": TIMEOUT}
        ended = subprocess.run(typed, capture_output=True, text=True, check=False, **started)
        self._out, self._all = ended.stdout, ended.stdout + ended.stderr
        assert ended.returncode == 0, f"status {ended.returncode}\n{self._all}"

    def _stop(self) -> None:
        while self._services:
            self._services.pop().stop()


def _pip_on_path(directory: Path) -> None:
    uv = shlex.quote(str(Path(sys.executable).with_name("uv")))
    (directory / "pip").write_text(PIP.format(uv=uv, python=shlex.quote(sys.executable)))
    (directory / "pip").chmod(0o755)


def assert_extras_exist(typed: str) -> None:
    """Whether the packages have the extras that `pip install` names: an unknown one is passed by, with a warning or
    without."""
    for words in re.findall(r"^\s*pip install (.*)$", typed, re.MULTILINE):
        for package, extras in re.findall(r"([\w.-]+)\[([^\]]+)\]", words):
            unknown = {*re.split(r"\s*,\s*", extras)}.difference(metadata(package).get_all("Provides-Extra") or [])
            assert not unknown, f"{package} does not provide the extra {', '.join(sorted(unknown))}"


def assert_alike(shown: Any, real: Any, where: str = "") -> None:
    """Whether two JSON values are equal, except for what differs from run to run."""
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


def matches(shown: str, real: str) -> bool:
    """Whether a shown text matches the output; a line `…` stands for any number of lines, `…` in a line for
    anything."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in shown.splitlines()
    )
    lines = real.replace("\r\n", "\n")
    return re.fullmatch(pattern, lines if lines.endswith("\n") else f"{lines}\n") is not None


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
