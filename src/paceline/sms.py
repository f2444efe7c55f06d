"""The types for writing an SMS provider: `paceline.sms`.

    from paceline.sms import Accepted, Rejected, SmsMessage, Unavailable

    class MyProvider:
        async def send(self, message: SmsMessage) -> Accepted | Rejected: ...

`PACELINE_SMS_PROVIDERS=mine=my_package.sms:MyProvider` configures it.
"""

from __future__ import annotations

from paceline.apps.notifications.ports import Receipt
from paceline.apps.notifications.provider import Accepted, Provider, Rejected, SmsMessage, Unavailable

__all__ = ["Accepted", "Provider", "Receipt", "Rejected", "SmsMessage", "Unavailable"]
