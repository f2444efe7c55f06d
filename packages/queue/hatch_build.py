"""The wheel `paceline-queue`: what the wheel `paceline` excludes, for exactly its version."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = Path(__file__).parents[2]


class Version(MetadataHookInterface):
    """Both wheels have one version, and need each other in it."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"paceline[queue]=={metadata['version']}"]


class Files(BuildHookInterface[Any]):
    """Takes what the other wheel excludes. An editable installation of the repository has all files already."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
        for path in document["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]:
            build_data["force_include"][str(REPOSITORY / path)] = path.removeprefix("src/")
