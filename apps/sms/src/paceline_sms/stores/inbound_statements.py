"""Messages that people sent to us, in a database: each changes the opt-outs once."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption, hidden
from paceline.sql.schema import now
from paceline_sms.inbound import Inbound, Word
from paceline_sms.model import storable
from paceline_sms.stores.message_statements import opt_in, opt_out
from paceline_sms.stores.rows import known_of
from paceline_sms.stores.tables import notification_inbound

LONGEST_ID = 200
REPEATED_FOR = timedelta(days=3)
"""How long a provider may deliver a message again."""


def receive(
    connection: Connection, provider: str, message: Inbound, word: Word | None, encryption: Encryption | None
) -> bool:
    """Notes a message, and enters or removes the opt-out of its sender; False if it was noted before. Of two
    transactions that note it at once, the second fails on the key, and is retried."""
    inbound_id = storable(f"{provider}:{message.inbound_id}", LONGEST_ID)
    if known_of(connection, notification_inbound.c.inbound_id, [inbound_id]):
        return False
    kind = "OTHER" if word is None else word.upper()
    phone = hidden(encryption, message.phone, "inbound", inbound_id)
    row = {"inbound_id": inbound_id, "phone": phone, "kind": kind, "received_at": now(connection)}
    connection.execute(notification_inbound.insert().values(row))
    if word is Word.STOP:
        opt_out(connection, message.phone, f"STOP, received by {provider}", encryption)
    elif word is Word.START:
        opt_in(connection, message.phone, encryption)
    return True
