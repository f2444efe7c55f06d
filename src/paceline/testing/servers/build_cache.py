"""Builds and downloads of test servers, made once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.testing.servers.failures import ServerUnavailable

Build = Callable[[Path, Path], None]
"""Builds in a scratch directory what becomes the second one: it is not there yet."""


def cache_path(name: str) -> Path:
    """Where a build of this name is, or will be."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / name


def obtain(directory: Path, build: Build) -> Path:
    """The directory; builds it if need be. One process builds, the others wait for it.

    Raises:
        ServerUnavailable: it is not in the cache, and can't be built.
    """
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{directory}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            with tempfile.TemporaryDirectory(prefix=f"{directory.name}-", dir=directory.parent) as scratch:
                built = Path(scratch, "built")
                build(Path(scratch), built)
                built.rename(directory)  # atomically
    return directory


def build_tool(program: str, problem: str) -> str:
    """The path of a program that builds.

    Raises:
        ServerUnavailable: it is not installed; `problem` says so.
    """
    path = shutil.which(program)
    if path is None:
        raise ServerUnavailable(problem)
    return path


def run_build(
    builder: str,
    command: Sequence[str],
    scratch: Path,
    *,
    aim: str,
    timeout: float,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Runs a program that builds; `aim` is what for, such as `build Temporal's server`.

    Raises:
        ServerUnavailable: it failed, or took longer than `timeout` seconds.
    """
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(f"{builder} did not {aim} within {timeout:g} s") from None
    if done.returncode:
        output = re.sub(r"https?://\S+", "…", done.stdout + done.stderr)[-1_000:]
        raise ServerUnavailable(f"{builder} could not {aim}:\n{output}")
