"""The topics of the outbox in which messages wait, whatever the log is."""

from __future__ import annotations


def parked_topic(topic: str) -> str:
    """Where records wait for their time."""
    return f"{topic}-later"


def held_topic(topic: str) -> str:
    """Where records of messages with an unknown outcome wait."""
    return f"{topic}-unknown"
