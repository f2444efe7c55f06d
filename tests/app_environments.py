"""Environments with some of the applications: interpreters that find everything that is installed here but our own
distributions, and of ours only those that are named."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
Python = Callable[..., "subprocess.CompletedProcess[str]"]

START = """
import sys
sys.path[:] = [path for path in sys.path if "-packages" not in path] + {paths!r}
sys.argv[:] = {arguments!r}
"""


def environment(folder: Path, *apps: str, own: Mapping[str, str] | None = None) -> Python:
    """A function that runs a script, with arguments, in a process that has these applications of this repository, and
    `own` ones: each a name, and the `module:attribute` of its `App`, whose modules are in the folder."""
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

    def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        start = START.format(paths=paths, arguments=["paceline", *arguments])
        command = [sys.executable, "-I", "-S", "-c", f"{start}\n{script}"]
        return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=False)

    return run


def _install(packages: Path, name: str, entries: Mapping[str, str]) -> None:
    """Writes what an installer would write of a distribution."""
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{entry} = {place}" for entry, place in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[paceline.apps]", *lines, ""]))
