"""Dead letters of records that can't be read, and the topic to which all are copied."""

from __future__ import annotations

import hashlib

from paceline.messaging import Record
from paceline_sms.ports import DeadLetter


def dead_letter_topic(topic: str) -> str:
    """Where dead letters are copied, with Kafka."""
    return f"{topic}-dlt"


def letter_of(record: Record, message_id: str | None, reason: str, attempts: int) -> DeadLetter:
    """The same record makes the same letter, however often it comes."""
    letter_id = hashlib.sha256(f"{record.key}\0{record.value}".encode(errors="surrogatepass")).hexdigest()
    return DeadLetter(letter_id, message_id, record.key, record.value, reason, attempts)
