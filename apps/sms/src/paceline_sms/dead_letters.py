"""Dead letters: made of a record, and copied to a topic."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from paceline.errors import PacelineError
from paceline.messaging import MessageLog, Record
from paceline_sms.ports import DeadLetter

_log = logging.getLogger(__name__)


def dead_letter_topic(topic: str) -> str:
    return f"{topic}-dlt"


def letter_of(record: Record, message_id: str | None, reason: str, attempts: int) -> DeadLetter:
    """The same record makes the same letter, however often it comes."""
    letter_id = hashlib.sha256(f"{record.key}\0{record.value}".encode(errors="surrogatepass")).hexdigest()
    return DeadLetter(letter_id, message_id, record.key, record.value, reason, attempts)


async def copy_letter(log: MessageLog, topic: str, letter: DeadLetter, record: Record) -> None:
    """Publishes a dead letter to its topic. The store has it, so a failure is only logged."""
    outcomes: Sequence[PacelineError | None]
    try:
        copy = Record(dead_letter_topic(topic), record.key[:128], letter.to_record_value(), record.traceparent)
        outcomes = await log.publish([copy])
    except PacelineError as error:
        outcomes = [error]
    if outcomes[0] is not None:
        _log.warning("a dead letter was not copied to %s: %s", dead_letter_topic(topic), outcomes[0])
