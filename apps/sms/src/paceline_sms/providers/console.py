"""The provider that only logs: one line per message."""

from __future__ import annotations

import logging

from paceline_sms.provider import Accepted, SmsMessage

_log = logging.getLogger(__name__)


class ConsoleProvider:
    """Writes `SMS Sent: …` to the log, at INFO, with the text."""

    async def send(self, message: SmsMessage) -> Accepted:
        ids = {"user_id": message.user_id, "message_id": message.id}
        _log.info("SMS Sent: %d: %s", message.user_id, on_one_line(message.text), extra=ids)
        return Accepted()


def on_one_line(text: str) -> str:
    """The text with its control characters escaped, so that a message can't forge log lines."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
