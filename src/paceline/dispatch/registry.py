"""The registry of domains: their item types, and how items run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from paceline.dispatch.config import DispatchConfig
from paceline.errors import ConfigurationError, NotFound

Execute = Callable[[str, Any], Any]
"""`async def execute(item_id, context)`: pure business logic that knows nothing of dispatch. A plain `def` runs on a
thread. Raising means failed. It may be run again after a crash, so its effects should be keyed by the item's id."""


def inquires(execute: Execute) -> bool:
    """Whether `execute` inquires what became of an attempt in doubt, before the next one."""
    return getattr(execute, "inquires", False) is True


@dataclass(frozen=True, slots=True)
class Domain:
    """One item type: its first settings and how it runs.

    Domain(DispatchConfig("REPORT"), execute=write_report)
    """

    config: DispatchConfig
    """Written when the database has none for this type; afterwards the database's settings apply."""
    execute: Execute
    workflow: type | None = None
    """The workflow class an engine with workflows of its own runs instead of `execute`."""
    activities: tuple[Callable[..., Any], ...] = ()
    """What `workflow` calls."""
    guarded: tuple[str, ...] | None = None
    """The names of those activities that call the downstream and so wait for the admission plan; None for all."""
    init_workflows: tuple[type, ...] = ()
    """What prepares items and enqueues them, where an engine with workflows of its own does that."""
    init_activities: tuple[Callable[..., Any], ...] = ()
    """What `init_workflows` call."""

    @property
    def item_type(self) -> str:
        return self.config.item_type

    def with_config(self, config: DispatchConfig) -> Domain:
        """The same domain, with the settings in force."""
        return replace(self, config=config)

    @property
    def init_task_queue(self) -> str:
        return f"{self.item_type.replace('_', '-').lower()}-init-task-queue"


class Registry:
    """The domains of this process.

    registry = Registry()
    registry.register("REPORT", write_report, concurrency=5)
    """

    def __init__(self, *domains: Domain) -> None:
        self._domains: dict[str, Domain] = {}
        for domain in domains:
            self.add(domain)

    def add(self, domain: Domain) -> None:
        """Adds a domain.

        Raises:
            ConfigurationError: its item type is registered already.
        """
        if domain.item_type in self._domains:
            raise ConfigurationError("item_type", f"{domain.item_type!r} is registered twice")
        self._domains[domain.item_type] = domain

    def register(
        self,
        item_type: str,
        execute: Execute,
        *,
        workflow: type | None = None,
        activities: Iterable[Callable[..., Any]] = (),
        guarded: Iterable[str] | None = None,
        **settings: Any,
    ) -> Domain:
        """Registers an item type; `settings` are its first `DispatchConfig`.

        Raises:
            ConfigurationError: the item type is registered already, or a setting is wrong.
        """
        config = DispatchConfig(item_type=item_type, **settings)
        domain = Domain(config, execute, workflow, tuple(activities), None if guarded is None else tuple(guarded))
        self.add(domain)
        return domain

    def __getitem__(self, item_type: str) -> Domain:
        try:
            return self._domains[item_type]
        except KeyError:
            raise NotFound("item type", item_type) from None

    def __contains__(self, item_type: object) -> bool:
        return item_type in self._domains

    def __iter__(self) -> Iterator[Domain]:
        return iter(self._domains.values())

    def __len__(self) -> int:
        return len(self._domains)
