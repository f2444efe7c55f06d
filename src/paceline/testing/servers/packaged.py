"""Finding the programs that come inside Python packages, without importing those packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from paceline.testing.servers.failures import ServerUnavailable


def package_directory(module: str, package: str) -> Path:
    """Where the package's files lie."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailable(f"package {package} is not installed: pip install 'paceline[testing]'")
    return Path(spec.submodule_search_locations[0])


def package_script(script: str, package: str) -> Path:
    """Where a program lies that the package puts beside Python's own."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        raise ServerUnavailable(f"package {package} is not installed: pip install 'paceline[testing]'") from None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == script and path.is_file():
            return path.resolve()
    raise ServerUnavailable(f"package {package} holds no {script} for this machine")
