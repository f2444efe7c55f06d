"""Names that TAB completes from the database: of configs, item types, periodic tasks, plans, downstreams and tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import click

from paceline.errors import PacelineError
from paceline.server.cli.parameters import Completion
from paceline.server.settings import Settings

MOST = 200
"""More names than that help nobody choose."""
Read = Callable[[Settings], Awaitable[Iterable[str]]]


def _completing(read: Read) -> Completion:
    """Completes what `read` finds. Nothing is offered, and nothing said, where the database can't be read."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
        from paceline.server.cli.read_only import missing_file
        from paceline.server.cli.terminal import run
        from paceline.sql.migration_policy import Migrations, permitting

        async def names(settings: Settings) -> Iterable[str]:
            return await read(settings)

        try:
            settings = Settings.load()
            if missing_file(settings) is not None:
                return []
            with permitting(Migrations.NEVER):
                found = run(names(settings))
        except (PacelineError, OSError):
            return []
        return sorted(name for name in set(found) if name.startswith(typed))[:MOST]

    return complete


async def _configs(settings: Settings) -> Iterable[str]:
    from paceline.server.wiring.slots import open_slots

    async with open_slots(settings) as slots:
        return [config.name for config in await slots.configs()]


async def _item_types(settings: Settings) -> Iterable[str]:
    from paceline.server.wiring.queue import open_queue

    async with open_queue(settings) as queue:
        return [config.item_type for config in await queue.configs()]


async def _periodic(settings: Settings) -> Iterable[str]:
    from paceline.dispatch.periodic.periodic_tasks import Periodic
    from paceline.server.wiring.queue import open_queue

    async with open_queue(settings) as queue:
        return [state.task.name for state in await Periodic(queue).list()]


async def _plans(settings: Settings) -> Iterable[str]:
    from paceline.server.wiring.limits import open_limits

    async with open_limits(settings) as limits:
        return await limits.plans.all()


async def _downstreams(settings: Settings) -> Iterable[str]:
    from paceline.server.wiring.downstreams import open_downstreams

    async with open_downstreams(settings) as downstreams:
        return [known.name for known in (await downstreams.list()).known]


async def _tokens(settings: Settings) -> Iterable[str]:
    from paceline.server.wiring.access import open_access_store

    async with open_access_store(settings) as store:
        return [token.name for token in await store.tokens()]


config_names = _completing(_configs)
item_types = _completing(_item_types)
periodic_names = _completing(_periodic)
plan_names = _completing(_plans)
downstream_names = _completing(_downstreams)
token_names = _completing(_tokens)
