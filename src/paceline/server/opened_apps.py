"""Applications while they run: what each is opened with, and what it gives to the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.server.apps import installed_apps, part

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from paceline.dispatch.ports import DispatchObserver
    from paceline.dispatch.queue import DispatchQueue
    from paceline.dispatch.registry import Domain
    from paceline.downstream.ports import BreakerStore
    from paceline.server.settings import Settings
    from paceline.slots.scheduler import SlotScheduler

Probe = Callable[[], Awaitable[object]]
"""Calls a dependency; raises if it does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """What an application is opened with: the features of the process that opens it."""

    settings: Settings
    slots: SlotScheduler
    queue: DispatchQueue
    observer: DispatchObserver
    registry: CollectorRegistry | None = None
    """For its metrics; None: nobody asks this process for them."""
    roles: frozenset[str] | None = None
    """The roles of a worker; None: this is the service."""
    opened: Mapping[str, OpenedApp] = field(default_factory=dict)
    """The applications that were opened before, by name."""

    def parts_of(self, name: str) -> Any:
        """What another application's routes use; None if it is not installed. It is opened before those that name it
        in `App.after`."""
        opened = self.opened.get(name)
        return None if opened is None else opened.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedApp:
    """What an application gives to the process that opened it."""

    parts: Any
    """What its routes and finders use: `services_of(request).app(name)`."""
    domains: Sequence[Domain] = ()
    """The work that a worker runs for it. The service's process runs none of it: an application that works there, does
    it itself."""
    probes: Mapping[str, Probe] = field(default_factory=dict)
    """Its dependencies by name, for `/health/ready`."""
    breakers: Mapping[str, BreakerStore] = field(default_factory=dict)
    """The breakers that all processes share, by name."""
    call_limits: Mapping[str, float] = field(default_factory=dict)
    """Calls per second that each of its downstreams takes, by name."""


@asynccontextmanager
async def open_apps(context: AppContext) -> AsyncIterator[dict[str, OpenedApp]]:
    """Opens every application, and closes them in reverse order."""
    opened: dict[str, OpenedApp] = {}
    async with AsyncExitStack() as stack:
        for app in installed_apps():
            if app.open is not None:
                own = AppContext(
                    settings=context.settings,
                    slots=context.slots,
                    queue=context.queue,
                    observer=context.observer,
                    registry=context.registry,
                    roles=context.roles,
                    opened=opened,
                )
                opened[app.name] = await stack.enter_async_context(part(app.open)(own))
        yield opened
