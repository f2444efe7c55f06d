"""The built wheel in a virtual environment of its own, as a stranger installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.acceptance.service import environment

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
COMPILED = ROOT / ".pytest_cache" / "d" / "compiled" / str(sys.implementation.cache_tag)
"""The compiled modules of all environments; `pytest --cache-clear` removes them."""

COPIES = """
import atexit, gc, importlib, json, os, sys, tempfile, threading

def end(status):
    # As Python does, but for the clearing of its memory, which would copy all of it first.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

modules, commands = json.loads(sys.argv[1])
for module in modules:
    importlib.import_module(module)
gc.freeze()
ended = []
for arguments, variables in commands:
    outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]
    if (pid := os.fork()) == 0:
        for number, file in enumerate(outputs, 1):
            os.dup2(file.fileno(), number)
        os.environ.update(variables)
        sys.argv = ["paceline", *arguments]
        from paceline.__main__ import main
        try:
            sys.exit(main())
        except SystemExit as ended:
            if isinstance(ended.code, int):  # else Python prints it
                end(ended.code)
            raise
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = [(file.seek(0), file.read())[1] for file in outputs]
    ended.append([["paceline", *arguments], status, *texts])
print(json.dumps(ended))
"""
CORE_MODULES = ["alembic.command", "paceline.server.cli.doctor.database", "paceline.server.wiring.dispatch"]
"""With what they import, most of what a command of a plain install loads."""


def build_wheel(directory: Path, source: Path = ROOT) -> Path:
    """The wheel of this tree, or of another."""
    _uv("build", "--wheel", "--build-constraints", str(CONSTRAINTS), "--out-dir", str(directory), str(source))
    (wheel,) = directory.glob("*.whl")
    return wheel


class Installed:
    """A virtual environment that holds the wheel, what it needs, and nothing else.

    Its compiled modules are elsewhere, for other environments and for the next run: Python takes those that were
    compiled from a file of this size and time.
    """

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        self._wheel = wheel
        self._bin = directory / "venv" / "bin"
        _uv("venv", "--python", sys.executable, str(directory / "venv"))
        (self._packages,) = (directory / "venv" / "lib").glob("python*/site-packages")
        self._variables = {"PYTHONPYCACHEPREFIX": str(directory / "compiled")}
        self._compiled = directory / "compiled" / self._packages.relative_to("/")
        self._compiled.parent.mkdir(parents=True)
        COMPILED.mkdir(parents=True, exist_ok=True)
        self._compiled.symlink_to(COMPILED)
        # pip compiles every module; uv leaves that to the first import.
        self._install("paceline", "--compile-bytecode")
        self._extras: tuple[str, ...] = ()

    def become(self, *extras: str) -> Installed:
        """The same as a fresh one with these extras: packages that they do not need are removed."""
        if extras != self._extras:
            self._install(f"paceline[{','.join(extras)}]" if extras else "paceline", "--exact")
            self._extras = extras
        return self

    def _install(self, what: str, *options: str) -> None:
        requirement = f"{what} @ {self._wheel.as_uri()}"
        options = (*options, "--python", str(self._bin / "python"), "--constraints", str(CONSTRAINTS))
        # Copies would have another time with each installation.
        _uv("pip", "install", "--link-mode", "symlink", *options, requirement, UV_NO_CACHE="0", **self._variables)

    def packages(self) -> set[str]:
        """What is installed, by name."""
        listed = _uv("pip", "freeze", "--python", str(self._bin / "python"))
        return {line.replace("==", " ").split()[0].lower() for line in listed.splitlines()}

    def megabytes(self, *, compiled: bool = True) -> float:
        """What its packages take of a disk, as `du` counts: in blocks."""
        files = list(self._packages.rglob("*"))
        if compiled:
            sources = (path.relative_to(self._packages) for path in files if path.suffix == ".py")
            files += [self._compiled / path.with_suffix(f".{sys.implementation.cache_tag}.pyc") for path in sources]
        return sum(path.stat().st_blocks * 512 for path in files) / 2**20

    def command(self, *arguments: str) -> list[str]:
        return [str(self._bin / "paceline"), *arguments]

    def paceline(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line to its end."""
        return self._ended(self.command(*arguments), variables)

    def commands(
        self, *commands: tuple[list[str], dict[str, str]], modules: Sequence[str] = ()
    ) -> list[subprocess.CompletedProcess[str]]:
        """Runs several command lines to their ends, one after the other, each with its variables.

        Each is a copy (a fork) of a process that has loaded the core's modules, and these: loading them takes longer
        than what most commands do.
        """
        copied = json.dumps([[*CORE_MODULES, *modules], commands])
        ended = self._ended([str(self._bin / "python"), "-c", COPIES, copied], {})
        assert ended.returncode == 0, ended.stderr
        return [subprocess.CompletedProcess(*each) for each in json.loads(ended.stdout)]

    def python(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._ended([str(self._bin / "python"), "-c", script], variables)

    def environment(self, **variables: str) -> dict[str, str]:
        return bare_environment(**variables) | self._variables

    def _ended(self, command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


def bare_environment(**variables: str) -> dict[str, str]:
    """No settings of this machine, and no other place to import from."""
    return {name: value for name, value in environment(**variables).items() if not name.startswith("PYTHON")}


def _uv(*arguments: str, **more: str) -> str:
    # pip's settings of the package index apply here, too.
    names = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_FIND_LINKS": "PIP_FIND_LINKS", "SSL_CERT_FILE": "PIP_CERT"}
    variables = {ours: os.environ[theirs] for ours, theirs in names.items() if theirs in os.environ}
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("uv")), "--quiet", *arguments],
        env=variables | os.environ | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
