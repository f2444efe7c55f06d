"""Applications: distributions that plug into the service.

A distribution names its `App` by an entry point of the group `paceline.apps`:

    [project.entry-points."paceline.apps"]
    invoices = "invoices.app:app"

The service, the worker and the command line find every application that is installed. An `App` names its parts as
`module:attribute`, so that none is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

GROUP = "paceline.apps"


class AppCommand(NamedTuple):
    """A command of `paceline`."""

    about: str
    """The first sentence of its help."""
    place: str
    """The click command, as `module:attribute`."""


@dataclass(frozen=True, kw_only=True)
class App:
    """What an application plugs in. Only the name is required."""

    name: str
    settings: str | None = None
    """Its section of the settings: a class of `paceline.server.setting_sections.Section`, at
    `PACELINE_<NAME>_…`."""
    routes: str | None = None
    """A FastAPI router, or a function that returns routes."""
    commands: Mapping[str, AppCommand] = field(default_factory=dict)
    """Commands of `paceline` by name."""


def part(place: str) -> Any:
    """The part of an application at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


@cache
def installed_apps() -> tuple[App, ...]:
    """The applications of this environment, by name.

    Raises:
        ConfigurationError: One of them can't be loaded.
    """
    found = sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)
    return tuple(_loaded(entry) for entry in found)


def _loaded(entry: metadata.EntryPoint) -> App:
    try:
        app = entry.load()
    except Exception as error:
        raise ConfigurationError(
            GROUP, f"the application {entry.name} ({entry.value}) can't be loaded: {error}"
        ) from error
    if not isinstance(app, App):
        raise ConfigurationError(GROUP, f"{entry.value} is no App, but a {type(app).__name__}")
    return app


def app_commands() -> dict[str, AppCommand]:
    """The commands of all applications."""
    return {name: command for app in installed_apps() for name, command in app.commands.items()}


def app_routes() -> list[BaseRoute]:
    """The routes of all applications."""
    routes: list[BaseRoute] = []
    for app in installed_apps():
        if app.routes is not None:
            given: Callable[[], Iterable[BaseRoute]] | Any = part(app.routes)
            routes += getattr(given, "routes", None) or given()
    return routes
