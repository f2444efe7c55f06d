"""Applications: distributions that plug into the service.

A distribution names its `App` by an entry point of the group `paceline.apps`:

    [project.entry-points."paceline.apps"]
    invoices = "invoices.app:app"

The service, the worker and the command line find every application that is installed. An `App` names its parts as
`module:attribute`, so that none is imported before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module, metadata, resources
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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
    """What an application plugs in. Only the name is required; each part is named as `module:attribute`."""

    name: str
    after: Sequence[str] = ()
    """Applications that are opened before this one, if they are installed."""

    # -- settings ------------------------------------------------------------------------------------------------
    settings: str | None = None
    """Its section of the settings: a class of `paceline.server.setting_sections.Section`, at
    `PACELINE_<NAME>_…`."""
    check: str | None = None
    """`check(settings)`: raises `ConfigurationError` for settings that can't work. Called before a process starts."""
    extras: str | None = None
    """`extras(settings)`: the extras of `paceline` that these settings need."""

    # -- a running process ---------------------------------------------------------------------------------------
    open: str | None = None
    """`open(context: AppContext)`: an asynchronous context manager that gives an `OpenedApp`; see
    `paceline.server.opened_apps`. The service and the worker open every application."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Roles of its own for `paceline worker ROLE`: `async run(settings, stop, *, registry=None)` each."""
    item_types: Sequence[str] = ()
    """The item types of its domains."""
    task_queues: Sequence[str] = ()
    """Task queues of its own on Temporal, whose workers `paceline doctor` looks for."""
    topics: str | None = None
    """`topics(settings)`: its topics, if there is Kafka."""
    followers: str | None = None
    """`followers(settings)`: by item type, the `Follower` that changes its rows when an item moves."""
    carriers: str | None = None
    """`carriers(settings)`: by owner, the `SlotCarrier` that moves its rows with their slots."""

    # -- for people ----------------------------------------------------------------------------------------------
    routes: str | None = None
    """A FastAPI router, or a function that returns routes."""
    audited: Sequence[str] = ()
    """Regular expressions of the paths whose changes are an operator's, and recorded as such."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """By a regular expression of paths: the scope that a change there needs. Others need `admin` under `/admin`, and
    `assign` under `/api`."""
    cancels: Mapping[str, str] = field(default_factory=dict)
    """By owner of slots: the route that cancels them with their work."""
    logged_path: str | None = None
    """`logged_path(path)`: a path without what must not be in a log."""
    finders: Mapping[str, str] = field(default_factory=dict)
    """By kind of what it finds: `async find(parts, text, limit)`, a list of `paceline.server.shapes.search.Found`."""
    pages: str | None = None
    """A folder with scripts of the console, as `package:folder`. They are served beside the console's own, and import
    those: `import {h} from './dom.js'`."""
    page_scripts: Sequence[str] = ()
    """The scripts among them that export pages, in the order of their tabs. An export's name is the page's address."""
    commands: Mapping[str, AppCommand] = field(default_factory=dict)
    """Commands of `paceline` by name."""
    verify_audit: str | None = None
    """`async verify(settings)`: how many records of its own history there are, and what is wrong with them, for
    `paceline audit verify`."""
    doctor: str | None = None
    """`async examine(settings)`: findings for `paceline doctor`."""
    alerts: str | None = None
    """A file with its alert rules for Prometheus, as `package:file`."""
    migrations: str | None = None
    """A `paceline.sql.migrate.Steps`: the steps that make its tables."""
    prune: str | None = None
    """`async prune(settings, before, now)`: deletes old records; returns how many of each kind."""


def part(place: str) -> Any:
    """The part of an application at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


@cache
def installed_apps() -> tuple[App, ...]:
    """The applications of this environment, each behind those that it names in `after`; else by name.

    Raises:
        ConfigurationError: One of them can't be loaded, or they wait for each other.
    """
    found = sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)
    return tuple(_in_order([_loaded(entry) for entry in found]))


def _in_order(apps: Sequence[App]) -> Iterator[App]:
    by_name = {app.name: app for app in apps}
    sorter = TopologicalSorter(
        {name: [other for other in app.after if other in by_name] for name, app in by_name.items()}
    )
    try:
        return iter([by_name[name] for name in sorter.static_order()])
    except CycleError as error:
        raise ConfigurationError(GROUP, f"applications wait for each other: {', '.join(error.args[1])}") from None


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


@cache
def app_packages() -> tuple[str, ...]:
    """The import names of all applications."""
    entries = sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)
    return tuple(dict.fromkeys(entry.value.partition(":")[0].partition(".")[0] for entry in entries))


def app_parts(kind: str) -> Iterator[Any]:
    """The parts of this kind (`check`, `doctor`, …) of all applications that have one."""
    for app in installed_apps():
        place: str | None = getattr(app, kind)
        if place is not None:
            yield part(place)


def app_alerts() -> list[Traversable]:
    """The files with the alert rules of all applications."""
    places = [app.alerts.partition(":") for app in installed_apps() if app.alerts is not None]
    return [resources.files(package) / file for package, _, file in places]


def app_mappings(kind: str, settings: Any) -> dict[Any, Any]:
    """What the parts of this kind return for these settings (`followers`, `carriers`), as one mapping."""
    return {name: value for given in app_parts(kind) for name, value in given(settings).items()}


def app_commands() -> dict[str, AppCommand]:
    """The commands of all applications."""
    return {name: command for app in installed_apps() for name, command in app.commands.items()}


def app_routes() -> list[BaseRoute]:
    """The routes of all applications."""
    routes: list[BaseRoute] = []
    for given in app_parts("routes"):
        made: Callable[[], Iterable[BaseRoute]] | Any = given
        routes += getattr(made, "routes", None) or made()
    return routes


def app_roles() -> dict[str, str]:
    """The roles of `paceline worker` of all applications, and the place of each."""
    return {role: place for app in installed_apps() for role, place in app.roles.items()}


def check_apps(settings: Any) -> None:
    """Checks the settings of all applications.

    Raises:
        ConfigurationError: A setting can't work; the error names it.
    """
    for check in app_parts("check"):
        check(settings)


@cache
def _audited() -> re.Pattern[str] | None:
    patterns = [pattern for app in installed_apps() for pattern in app.audited]
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


def is_audited_path(path: str) -> bool:
    """Whether a change at this path of an application is an operator's."""
    pattern = _audited()
    return pattern is not None and pattern.fullmatch(path) is not None


@cache
def _scopes() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(path), scope) for app in installed_apps() for path, scope in app.scopes.items()]


def scope_of_path(path: str) -> str | None:
    """The scope that an application asks for changes at this path; None if it names none."""
    return next((scope for pattern, scope in _scopes() if pattern.fullmatch(path)), None)


def cancelling_route(owner: str) -> str | None:
    """The route that cancels an owner's slots with their work; None if no application of this environment has it."""
    return next((app.cancels[owner] for app in installed_apps() if owner in app.cancels), None)


def logged_path(path: str) -> str:
    """A request's path as the log may have it."""
    for shorten in app_parts("logged_path"):
        path = shorten(path)
    return path
