"""Which calls of a task are the same item: by key, by arguments, by period, as the item's id."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.dispatch.outcomes import checked_pause
from paceline.dispatch.tasks.policies import Duration
from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.model import LONGEST_ID, checked_id

WORDS = ("arguments", "while_waiting")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Unique:
    """The condition under which two calls are one item. The same key always is."""

    by_arguments: bool = False
    period: timedelta | None = None
    while_waiting: bool = False
    """A call is one item with an earlier one that waits still."""

    def chosen(self, word: str | None) -> Unique:
        """This policy, or what a call's `unique` says instead."""
        if word is None:
            return self
        return replace(self, by_arguments=True, while_waiting=word == "while_waiting")

    def item_id(self, key: str | None, context: Any, moment: datetime | None) -> str:
        """The item's id, for a call that runs at `moment`, or now. Calls with the same id are one item, until that is
        pruned.

        Raises:
            InvalidInput: the key is wrong.
        """
        if key is not None:
            checked_id(key, "key")
        if key is None and (self.by_arguments or self.while_waiting):
            text = json.dumps(context, sort_keys=True, ensure_ascii=True)
            key = f"arguments-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        if self.period is None:
            return new_id() if key is None else key
        moment = moment or datetime.now(UTC)
        start = moment - (moment - EPOCH) % self.period
        suffix = f"@{start:%Y%m%dT%H%M%SZ}"
        if key is not None and len(key) + len(suffix) > LONGEST_ID:
            raise InvalidInput("key", f"has {len(key)} characters; here at most {LONGEST_ID - len(suffix)} are allowed")
        return f"{'period' if key is None else key}{suffix}"


NOT_UNIQUE = Unique()


def new_id() -> str:
    """A unique id: a UUID of version 7, as 32 hexadecimal digits. It begins with the time, to a quarter of a
    microsecond: items that are queued together are adjacent in every index, so that few pages are written."""
    ms, ns = divmod(time.time_ns(), 1_000_000)
    part = 0x7000 | ns * 4096 // 1_000_000
    rest = 1 << 63 | int.from_bytes(os.urandom(8)) >> 2
    return f"{ms:012x}{part:04x}{rest:016x}"


def checked_words(unique: str, error: type[InvalidInput]) -> None:
    """Raises `error` if a call can't be unique by this."""
    if unique not in WORDS:
        raise error("unique", f"{unique!r} is unknown; use 'arguments' or 'while_waiting', or give a key")


def checked_unique(unique: str | None, period: Duration | None) -> Unique:
    """The policy, or `ConfigurationError`."""
    if unique is not None:
        checked_words(unique, ConfigurationError)
    span: timedelta | None = None
    if period is not None:
        try:
            span = checked_pause(period, "unique_period")
        except InvalidInput as error:
            raise ConfigurationError(error.field, error.problem) from None
        if span < timedelta(seconds=1) or span % timedelta(seconds=1):
            raise ConfigurationError("unique_period", "must be a whole number of seconds, one or more")
    return Unique(unique is not None, span, unique == "while_waiting")
