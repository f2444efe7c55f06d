"""Temporal's server and its SQL schema tool: built once with Go, kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from headgate.testing.servers.failures import ServerUnavailable

VERSION = "1.32.1"
PROGRAMS = {"server": "cmd/server", "sql": "cmd/tools/sql"}
"""By the name that Go gives it: where its source is in the module."""
BUILD_WITHIN = 10_800.0


def cache_directory() -> Path:
    """Where the programs of this version are, or will be."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "headgate" / f"temporal-{VERSION}"


def program(name: str) -> str:
    """The path of one of `PROGRAMS`; builds them if need be. One process builds, the others wait for it.

    Raises:
        ServerUnavailable: they are not in the cache, and can't be built.
    """
    directory = cache_directory()
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{directory}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not directory.is_dir():
                _build(directory)
    return str(directory / name)


def check_obtainable() -> None:
    """Raises `ServerUnavailable` if the programs are not here and could not be built."""
    if not cache_directory().is_dir():
        _go()


def _go() -> str:
    found = shutil.which("go")
    if found is None:
        raise ServerUnavailable("Temporal's server is not in the cache and there is no Go (go) to build it")
    return found


def _build(directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="temporal-build-", dir=directory.parent) as scratch:
        built = Path(scratch, "programs")
        packages = [f"go.temporal.io/server/{source}@v{VERSION}" for source in PROGRAMS.values()]
        try:
            done = subprocess.run(
                [_go(), "install", "-trimpath", *packages],
                cwd=scratch,
                env={**os.environ, "GOBIN": str(built)},
                capture_output=True,
                text=True,
                timeout=BUILD_WITHIN,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ServerUnavailable(f"Go did not build Temporal's server within {BUILD_WITHIN:g} s") from None
        if done.returncode:
            said = re.sub(r"https?://\S+", "…", done.stdout + done.stderr)[-1_000:]
            raise ServerUnavailable(f"Go could not build Temporal's server:\n{said}")
        built.rename(directory)  # whole or not at all
