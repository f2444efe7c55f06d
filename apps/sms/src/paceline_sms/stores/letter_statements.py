"""Dead letters in a database: of messages, whose items are dead letters of the queue, and of records that could not be
read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from paceline.dispatch.encryption import Encryption, decrypted, hidden
from paceline.durations import to_ms
from paceline.errors import StoreUnavailable
from paceline.messaging import Record
from paceline.sql.counting import count_up_to
from paceline.sql.in_lists import where_in
from paceline.sql.outbox import append
from paceline_sms.model import storable
from paceline_sms.ports import DeadLetter
from paceline_sms.stores.message_statements import LONGEST_REASON
from paceline_sms.stores.rows import hidden_record, known_of, ordered, past
from paceline_sms.stores.tables import notification_dead_letter

LONGEST_VALUE = 60_000
"""Characters of a record that are kept."""

_letter = notification_dead_letter.c


def bury(
    connection: Connection,
    letters: Sequence[DeadLetter],
    at: datetime,
    copies: str | None,
    encryption: Encryption | None,
) -> list[DeadLetter]:
    """Stores dead letters, and with `copies` appends them to this topic of the outbox. Returns those that are new."""
    known = set(known_of(connection, _letter.letter_id, [letter.letter_id for letter in letters]))
    fresh = {letter.letter_id: letter for letter in letters if letter.letter_id not in known}
    if not fresh:
        return []
    connection.execute(notification_dead_letter.insert(), [_row(letter, at, encryption) for letter in fresh.values()])
    if copies is not None:
        records = [Record(copies, storable(one.key, 128), one.to_record_value()) for one in fresh.values()]
        append(connection, [hidden_record(encryption, record) for record in records])
    return list(fresh.values())


def _row(letter: DeadLetter, at: datetime, encryption: Encryption | None) -> dict[str, Any]:
    # The text of a message is in its item alone.
    kept = "" if letter.message_id is not None else letter.value
    value = json.dumps(kept)
    is_whole = len(value) <= LONGEST_VALUE
    return {
        "letter_id": letter.letter_id,
        "message_id": letter.message_id,
        "message_key": json.dumps(letter.key)[1:-1][:128],
        "message_value": hidden(
            encryption, value if is_whole else json.dumps(kept[: LONGEST_VALUE // 12]), "letter", letter.letter_id
        ),
        "sha256": hashlib.sha256(letter.value.encode(errors="surrogatepass")).hexdigest(),
        "whole": is_whole,
        "reason": storable(letter.reason, LONGEST_REASON),
        "attempts": letter.attempts,
        "dead_at": at,
    }


def dead_letters(
    connection: Connection,
    limit: int,
    cursor: tuple[datetime, str] | None,
    newest_first: bool,
    encryption: Encryption | None,
) -> list[DeadLetter]:
    """The oldest or the newest dead letters after a place."""
    order = (_letter.dead_at, _letter.letter_id)
    query = sa.select(notification_dead_letter).order_by(*ordered(order, not newest_first)).limit(limit)
    if cursor is not None:
        query = query.where(*past(order, cursor, not newest_first))
    return [_shown(row, encryption) for row in connection.execute(query)]


def count_dead_letters(connection: Connection, at_most: int) -> int:
    """How many dead letters there are, up to so many."""
    return count_up_to(connection, notification_dead_letter, at_most)


def chosen(connection: Connection, letter_ids: Sequence[str] | None, limit: int) -> list[DeadLetter]:
    """The dead letters with these ids, or the oldest, their values as they are stored; their messages' items may be
    gone."""
    query = sa.select(notification_dead_letter).order_by(_letter.dead_at, _letter.letter_id)
    if letter_ids is None:
        return [_dead_letter(row) for row in connection.execute(query.where(_letter.whole == sa.true()).limit(limit))]
    letters = []
    for some in where_in(connection, _letter.letter_id, letter_ids):
        letters += [_dead_letter(row) for row in connection.execute(query.where(some))]
    return letters


def remove(connection: Connection, letter_ids: Sequence[str]) -> None:
    """Deletes dead letters."""
    for some in where_in(connection, _letter.letter_id, letter_ids):
        connection.execute(notification_dead_letter.delete().where(some))


def forget_letters(connection: Connection, message_ids: Sequence[str]) -> None:
    """Deletes the dead letters of messages that have become something else."""
    for some in where_in(connection, _letter.message_id, message_ids):
        connection.execute(notification_dead_letter.delete().where(some))


def value_of(letter: DeadLetter, encryption: Encryption | None) -> str:
    """The record of a letter whose value is as stored.

    Raises:
        StoreUnavailable: This process lacks its key.
    """
    value: str = json.loads(decrypted(encryption, letter.value, "letter", letter.letter_id))
    return value


def _shown(row: Row[Any], encryption: Encryption | None) -> DeadLetter:
    """The dead letter, its value decrypted as far as the keys go."""
    letter = _dead_letter(row)
    try:
        return letter._replace(value=value_of(letter, encryption))
    except StoreUnavailable as error:
        return letter._replace(value=str(error))


def _dead_letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        row.letter_id,
        row.message_id,
        row.message_key,
        row.message_value,
        row.reason,
        row.attempts,
        to_ms(row.dead_at),
        row.whole,
        row.dead_at,
    )
