"""Environments with some of the applications: interpreters that find everything that is installed here but our own
distributions, and of ours only those that are named."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MAIN = "from paceline.__main__ import main\nmain()"
"""The command `paceline`, as a script."""

START = """
import sys
sys.path[:] = [path for path in sys.path if "-packages" not in path] + {paths!r}
sys.argv[:] = {arguments!r}
"""


class Python(NamedTuple):
    """The interpreter of an environment; called, it runs a script with arguments to its end."""

    folder: Path
    paths: list[str]

    def __call__(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self.command(script, *arguments)
        return subprocess.run(command, cwd=self.folder, env={}, capture_output=True, text=True, check=False)

    def command(self, script: str, *arguments: str) -> list[str]:
        """A command line that runs a script."""
        start = START.format(paths=self.paths, arguments=["paceline", *arguments])
        return [sys.executable, "-I", "-S", "-c", f"{start}\n{script}"]


def environment(folder: Path, *apps: str, own: Mapping[str, str] | None = None) -> Python:
    """An interpreter that has these applications of this repository, and `own` ones: each a name, and the
    `module:attribute` of its `App`, whose modules are in the folder."""
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "paceline_" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    paths = [str(folder), str(packages), str(ROOT / "src")]
    for name in apps:
        _install(packages, f"paceline_{name}", {name: f"paceline_{name}.app:app"})
        paths.append(str(ROOT / "apps" / name / "src"))
    if own:
        _install(packages, "own_apps", own)

    return Python(folder, paths)


def _install(packages: Path, name: str, entries: Mapping[str, str]) -> None:
    """Writes what an installer would write of a distribution."""
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{entry} = {place}" for entry, place in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[paceline.apps]", *lines, ""]))
