"""Rows of accepted messages go to the store in batches; none is lost while the store is down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from paceline_sms.accepted_rows import AcceptedRows
from paceline_sms.model import Message


class Rows:
    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.down = False

    async def accepted(self, messages: Sequence[Message]) -> None:
        if self.down:
            raise StoreUnavailable
        self.batches.append([message.message_id for message in messages])


def message(message_id: str) -> Message:
    return Message(1, "m", message_id)


async def test_they_are_written_together_in_the_background() -> None:
    store = Rows()
    rows = AcceptedRows(store)
    rows.add(message("a"))
    rows.add(message("b"))
    await eventually(lambda: store.batches == [["a", "b"]])
    await rows.close()


async def test_none_is_lost_while_the_store_is_away() -> None:
    store = Rows()
    store.down = True
    rows = AcceptedRows(store)
    rows.add(message("a"))
    with pytest.raises(StoreUnavailable):
        await rows.flush()
    rows.add(message("b"))
    store.down = False
    await rows.flush()
    assert store.batches == [["a", "b"]]
    await rows.close()


async def test_closing_writes_what_is_left() -> None:
    store = Rows()
    rows = AcceptedRows(store)
    rows.add(message("a"))
    await rows.close()
    assert store.batches == [["a"]]
