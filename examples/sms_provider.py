"""An SMS provider of your own: a modem that takes each message from a folder.

Run it:  python examples/sms_provider.py

    4711: Accepted
    4712: Rejected, there is no number to send to
    4713: Unavailable, and goes to the next provider

With the service: PACELINE_SMS_PROVIDERS=modem=examples.sms_provider:Modem paceline serve
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from paceline_sms import Accepted, Rejected, SmsMessage, Unavailable


class Modem:
    """Puts each message into the modem's folder, under its id: a repetition replaces the file."""

    def __init__(self, folder: str = os.environ.get("SMS_SPOOL", "outgoing")) -> None:
        self._folder = Path(folder)

    async def send(self, message: SmsMessage) -> Accepted | Rejected:
        if message.to is None:
            return Rejected("there is no number to send to")
        try:
            (self._folder / message.id).write_text(f"To: {message.to}\n\n{message.text}", encoding="utf-8")
        except OSError as error:  # certainly not taken: it may go to the next provider
            raise Unavailable(f"the folder can't be written: {error.strerror}", retry_after=5) from error
        return Accepted(provider_id=message.id, segments=message.segments)


async def main() -> None:
    later = datetime.now(UTC) + timedelta(minutes=5)
    with tempfile.TemporaryDirectory() as folder:
        for number, (to, where) in enumerate([("+491701234567", folder), (None, folder), ("+1", f"{folder}/gone")]):
            message = SmsMessage(str(4711 + number), to, "Your code is 1234", 1, 1, later, user_id=7)
            try:
                outcome = await Modem(where).send(message)
                reason = f", {outcome.reason}" if isinstance(outcome, Rejected) else ""
                print(f"{message.id}: {type(outcome).__name__}{reason}")
            except Unavailable:
                print(f"{message.id}: Unavailable, and goes to the next provider")


if __name__ == "__main__":
    asyncio.run(main())
