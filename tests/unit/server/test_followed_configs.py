"""One process at a time lets configs follow a downstream: it changes the limit, re-plans, and is audited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from paceline.downstream.adaptation import Aimd, started
from paceline.downstream.directory import Downstreams
from paceline.downstream.state import State
from paceline.downstream.stores.sql_states import SqlDirectory
from paceline.server.access.ports import AdminAudit
from paceline.server.followed_configs import LEASED_LOOKS, FollowedConfigs
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from paceline.slots import SlotScheduler, WindowPolicy
from paceline.sql.databases import database

LASTING = 60.0


class Service(NamedTuple):
    """What two processes of a service share, and a clock for both."""

    slots: SlotScheduler
    directory: SqlDirectory
    audit: AdminAudit
    clock: list[float]

    def follower(self) -> FollowedConfigs:
        downstreams = Downstreams({"database": self.directory})
        return FollowedConfigs(self.slots, downstreams, self.audit, lasting=LASTING, monotonic=lambda: self.clock[0])

    async def rate_is(self, rate: str) -> None:
        await self.directory.of("bank").change(lambda state, _: state._replace(hard="50/second", rate=rate))

    async def look(self, *followers: FollowedConfigs, seconds: float = LASTING) -> None:
        """Looks as often as the processes would in so many seconds."""
        ends = self.clock[0] + seconds
        while self.clock[0] < ends:
            for follower in followers:
                await follower.look()
            self.clock[0] += followers[0].pause

    async def limit(self) -> tuple[int, int | None]:
        policy = (await self.slots.policy("bank")).policy
        return policy.max_per_window, policy.full_max


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    url = f"sqlite:///{tmp_path / 'paceline.db'}"
    async with AsyncExitStack() as stack:
        slots = await stack.enter_async_context(SlotScheduler.open(url))
        directory = SqlDirectory(await database(url))
        stack.push_async_callback(directory.close)
        audit = await stack.enter_async_context(open_access_store(Settings(database_url=url)))
        await slots.configure("bank", WindowPolicy(50, "PT1S", follow="bank"))
        yield Service(slots, directory, audit, [1000.0])


async def changes(service: Service) -> list[tuple[str, str, int | None]]:
    return [(entry.caller, entry.path, entry.status) for _, entry in await service.audit.recent(10)]


async def test_a_lasting_fall_lowers_the_plan_and_a_recovery_raises_it(service: Service) -> None:
    follower = service.follower()
    at = datetime.now(UTC) + timedelta(hours=1)
    await service.slots.assign_many([(f"pay-{number}", at) for number in range(200)], "bank")
    await service.rate_is("50/second")
    await service.look(follower)
    assert await service.limit() == (50, None)

    await service.rate_is("25/second")
    await service.look(follower, seconds=LASTING / 2)
    assert await service.limit() == (50, None), "not for a blip"
    await service.look(follower)
    assert await service.limit() == (25, 50)
    windows = [(await service.slots.find(f"pay-{number}")).window_start_ms for number in range(200)]
    assert max(windows.count(start) for start in windows) <= 25
    assert await changes(service) == [("follow:bank", "config bank", 200)]

    await service.rate_is("50/second")
    await service.look(follower, seconds=LASTING + 10)
    assert await service.limit() == (50, None)
    again = [(await service.slots.find(f"pay-{number}")).window_start_ms for number in range(200)]
    assert len(set(again)) < len(set(windows))
    assert len(await changes(service)) == 2
    await service.look(follower)
    assert len(await changes(service)) == 2, "and nothing more is changed"


async def test_one_process_at_a_time_decides_and_another_takes_over(service: Service) -> None:
    one, other = service.follower(), service.follower()
    await service.rate_is("25/second")
    await service.look(one, other, seconds=LASTING + 10)
    assert await service.limit() == (25, 50)
    assert len(await changes(service)) == 1
    await service.rate_is("10/second")
    assert not await Downstreams({"database": service.directory}).lease("bank", "a third", 1), "the first one holds it"
    await service.directory.of("bank").change(lambda state, _: state._replace(follower=None))  # its lease ran out
    await service.look(other, one, seconds=LASTING + 10)
    assert await service.limit() == (10, 50)
    assert len(await changes(service)) == 2


async def test_an_adaptive_rate_that_never_fell_proves_nothing(service: Service) -> None:
    follower, estimate = service.follower(), started(Aimd(floor="1/second", ceiling="50/second"), 1)
    bank = service.directory.of("bank")
    await bank.change(lambda state, _: State(hard="50/second", estimate=estimate))
    await service.look(follower, seconds=LASTING + 10)
    assert await service.limit() == (50, None)
    await bank.change(lambda state, _: state._replace(estimate=estimate._replace(rate=20.0, fell_us=1)))
    await service.look(follower, seconds=LASTING + 10)
    assert await service.limit() == (20, 50)


async def test_a_config_that_an_operator_changes_meanwhile_is_his(service: Service) -> None:
    follower = service.follower()
    await service.rate_is("25/second")
    await service.look(follower, seconds=LASTING + 10)
    await service.slots.change("bank", {"follow": None})
    assert await service.limit() == (50, None)
    await service.look(follower, seconds=LASTING + 10)
    assert await service.limit() == (50, None)
    assert follower.pause * LEASED_LOOKS < LASTING
