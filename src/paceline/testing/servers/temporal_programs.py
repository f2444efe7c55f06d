"""Temporal's server and its SQL schema tool: built once with Go, kept in the user's cache."""

from __future__ import annotations

from pathlib import Path

from paceline.testing.servers.build_cache import build_tool, cache_path, obtain, run_build

VERSION = "1.32.1"
PROGRAMS = {"server": "cmd/server", "sql": "cmd/tools/sql"}
"""By the name that Go gives it: where its source is in the module."""
BUILD_WITHIN = 10_800.0


def cache_directory() -> Path:
    """Where the programs of this version are, or will be."""
    return cache_path(f"temporal-{VERSION}")


def program(name: str) -> str:
    """The path of one of `PROGRAMS`; builds them if need be. One process builds, the others wait for it.

    Raises:
        ServerUnavailable: they are not in the cache, and can't be built.
    """
    return str(obtain(cache_directory(), _build) / name)


def check_obtainable() -> None:
    """Raises `ServerUnavailable` if the programs are not here and could not be built."""
    if not cache_directory().is_dir():
        _go()


def _go() -> str:
    return build_tool("go", "Temporal's server is not in the cache and there is no Go (go) to build it")


def _build(scratch: Path, programs: Path) -> None:
    packages = [f"go.temporal.io/server/{source}@v{VERSION}" for source in PROGRAMS.values()]
    command = [_go(), "install", "-trimpath", *packages]
    aim, variables = "build Temporal's server", {"GOBIN": str(programs)}
    run_build("Go", command, scratch, aim=aim, timeout=BUILD_WITHIN, variables=variables)
