"""The built wheels in a virtual environment of their own, as a stranger installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.acceptance.service import environment

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


def build_wheels(directory: Path, source: Path = ROOT) -> list[Path]:
    """The wheels of this tree, or of another."""
    for project in (source, *sorted(path.parent for path in source.glob("*/*/pyproject.toml"))):
        _uv("build", "--wheel", "--build-constraints", str(CONSTRAINTS), "--out-dir", str(directory), str(project))
    return sorted(directory.glob("*.whl"))


def find_python(version: str) -> str | None:
    """An interpreter of this version, if there is one here."""
    path = shutil.which(f"python{version}")
    if path is None:
        return None
    script = "import sys; print(sys.executable)"
    selected = os.environ | {"PYENV_VERSION": version}  # pyenv runs only selected versions
    found = subprocess.run([path, "-c", script], env=selected, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


class Installed:
    """A virtual environment that holds the wheels, what they need, and nothing else; with an empty home directory, and
    an empty current one."""

    def __init__(self, directory: Path, wheels: Path, python: str = sys.executable) -> None:
        self._wheels = wheels
        self._venv = directory / "venv"
        self.directory = directory / "work"
        self._home = directory / "home"
        for folder in (self.directory, self._home):
            folder.mkdir()
        _uv("venv", "--python", python, str(self._venv))
        (self._packages,) = (self._venv / "lib").glob("python*/site-packages")
        self._before = {*self._packages.iterdir()}
        self._extras: tuple[str, ...] | None = None

    def become(self, *extras: str) -> Installed:
        """The same as a fresh one with these extras: packages that they do not need are removed."""
        if extras != self._extras:
            (wheel,) = self._wheels.glob("paceline-*.whl")
            what = f"paceline[{','.join(extras)}]" if extras else "paceline"
            options = ["--find-links", str(self._wheels), "--constraints", str(CONSTRAINTS), "--link-mode", "symlink"]
            options += ["--exact", "--python", str(self._venv / "bin/python")]
            _uv("pip", "install", *options, f"{what} @ {wheel.as_uri()}", UV_NO_CACHE="0")
            self._extras = extras
        return self

    def packages(self) -> set[str]:
        """What is installed, by name."""
        listed = _uv("pip", "freeze", "--python", str(self._venv / "bin/python"))
        return {line.replace("==", " ").split()[0].lower() for line in listed.splitlines()}

    def megabytes(self) -> float:
        """What its packages take of a disk, as `du` counts: in blocks; without modules that Python compiled."""
        installed = {*self._packages.iterdir()} - self._before
        files = [file for path in installed for file in (path, *path.rglob("*")) if "__pycache__" not in file.parts]
        return sum(file.stat().st_blocks * 512 for file in files) / 2**20

    def command(self, *arguments: str) -> list[str]:
        return [str(self._venv / "bin/paceline"), *arguments]

    def paceline(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line to its end."""
        return self._ended(self.command(*arguments), variables)

    def python(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._ended([str(self._venv / "bin/python"), "-c", script], variables)

    def environment(self, **variables: str) -> dict[str, str]:
        """No settings of this machine, and no other place to import from."""
        variables |= {"HOME": str(self._home)}
        return {name: value for name, value in environment(**variables).items() if not name.startswith("PYTHON")}

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


_UV = str(Path(sys.executable).with_name("uv"))


def _uv(*arguments: str, **more: str) -> str:
    # pip's settings of the package index apply here, too.
    names = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_FIND_LINKS": "PIP_FIND_LINKS", "SSL_CERT_FILE": "PIP_CERT"}
    variables = {ours: os.environ[theirs] for ours, theirs in names.items() if theirs in os.environ}
    ended = subprocess.run(
        [_UV, "--quiet", *arguments],
        env=variables | os.environ | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
