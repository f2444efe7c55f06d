"""The sender that only says so: one log line a message."""

from __future__ import annotations

import logging

from headgate.apps.notifications.model import Message

_log = logging.getLogger(__name__)


class ConsoleSender:
    """Writes `SMS Sent: …` to the log, at INFO."""

    async def send(self, message: Message) -> None:
        log_sent(_log, message)

    async def close(self) -> None:
        pass


def log_sent(log: logging.Logger, message: Message) -> None:
    """The line every sender writes for a message that is out."""
    ids = {"user_id": message.user_id, "message_id": message.message_id}
    log.info("SMS Sent: %d: %s", message.user_id, on_one_line(message.text), extra=ids)


def on_one_line(text: str) -> str:
    """The text with its control characters escaped, so that a message can't forge log lines."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
