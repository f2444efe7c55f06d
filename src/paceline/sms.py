"""The types for writing an SMS provider: `paceline.sms`.

    from paceline.sms import Accepted, Rejected, SmsMessage, Unavailable, Unknown

    class MyProvider:
        async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown: ...

`PACELINE_SMS_PROVIDERS=mine=my_package.sms:MyProvider` configures it.
"""

from __future__ import annotations

from paceline.apps.notifications.ports import Receipt
from paceline.apps.notifications.provider import (
    Accepted,
    OnUnknown,
    Provider,
    Rejected,
    SmsMessage,
    Unavailable,
    Unknown,
)

__all__ = ["Accepted", "OnUnknown", "Provider", "Receipt", "Rejected", "SmsMessage", "Unavailable", "Unknown"]
