"""What operators see and change of downstreams."""

from __future__ import annotations

import pytest

from paceline.downstream.adaptation import Aimd, started
from paceline.downstream.directory import Downstreams
from paceline.downstream.ports import StateStore
from paceline.downstream.state import NEW, Reading, State, with_pause
from paceline.downstream.stores.memory import MemoryStateStore
from paceline.errors import ConfigurationError, NotFound, StoreUnavailable

NOW = 1_800_000_000_000_000


class Directory:
    """Downstreams in memory."""

    def __init__(self, **states: State) -> None:
        self.stores: dict[str, StateStore] = {}
        for name, state in states.items():
            self.stores[name] = MemoryStateStore(lambda: NOW)
            self.stores[name]._state = state  # type: ignore[attr-defined]  # memory's own

    async def read_all(self) -> dict[str, Reading]:
        return {name: await store.read() for name, store in self.stores.items()}

    def of(self, name: str) -> StateStore:
        return self.stores[name]

    async def close(self) -> None: ...


async def test_all_are_listed_by_name_and_the_first_store_counts() -> None:
    first, second = Directory(bank=NEW._replace(hard="50/second")), Directory(bank=NEW, api=NEW)
    listed = await Downstreams({"database": first, "Redis": second}).list()
    assert [(known.name, known.rate) for known in listed.known] == [("api", None), ("bank", "50/second")]


class Away(Directory):
    """Of a store that can't be reached."""

    async def read_all(self) -> dict[str, Reading]:
        raise StoreUnavailable("away")


async def test_a_store_that_is_away_hides_its_own_downstreams_only() -> None:
    listed = await Downstreams({"database": Directory(bank=NEW), "Redis": Away()}).list()
    assert ([known.name for known in listed.known], listed.unreachable) == (["bank"], ["Redis"])


async def test_the_effective_rate_is_the_lowest() -> None:
    policy = Aimd(floor="1/second", ceiling="30/second")
    state = NEW._replace(hard="50/second", estimate=started(policy, NOW)._replace(rate=30.0))
    downstreams = Downstreams({"database": Directory(bank=state)})
    assert [known.effective for known in (await downstreams.list()).known] == [30]
    assert (await downstreams.change("bank", rate="600/minute")).effective == 10
    assert (await downstreams.change("bank", rate=None)).effective == 30


async def test_resuming_forgets_what_the_other_side_asked_for() -> None:
    downstreams = Downstreams({"database": Directory(bank=with_pause(NEW, "host", NOW + 5_000_000, NOW))})
    paused = await downstreams.change("bank", paused=True)
    assert (paused.state.paused, paused.pauses) == ("by an operator", {"host": 5.0})
    resumed = await downstreams.change("bank", paused=False)
    assert (resumed.state.paused, resumed.pauses) == (None, {})


@pytest.mark.parametrize(
    ("name", "rate", "error"),
    [
        ("bnk", "5/second", NotFound),
        ("bank", "51/second", ConfigurationError),
        ("bank", "often", ConfigurationError),
        ("llm", "5/second", ConfigurationError),
    ],
)
async def test_what_cannot_be_changed_changes_nothing(name: str, rate: str, error: type[Exception]) -> None:
    directory = Directory(bank=NEW._replace(hard="50/second"), llm=NEW)
    with pytest.raises(error):
        await Downstreams({"database": directory}).change(name, paused=True, rate=rate)
    assert all(reading.state.paused is None for reading in (await directory.read_all()).values())
