"""What the wheels of the applications have in common: paceline's version, and a need for paceline in exactly it."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Version(MetadataHookInterface):
    """Adds paceline in the same version to the dependencies that the application's `pyproject.toml` lists."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"paceline[queue]=={metadata['version']}", *self.config["dependencies"]]
