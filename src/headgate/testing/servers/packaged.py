"""Finding the programs that come inside Python packages, without importing those packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from headgate.testing.servers.failures import ServerUnavailable


def package_directory(module: str, distribution: str) -> Path:
    """Where the package's files lie."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailable(f"package {distribution} is not installed: pip install 'headgate[testing]'")
    return Path(spec.submodule_search_locations[0])
