"""The types for writing an SMS provider: `headgate.sms`.

    from headgate.sms import Accepted, Rejected, SmsMessage, Unavailable

    class MyProvider:
        async def send(self, message: SmsMessage) -> Accepted | Rejected: ...

`HEADGATE_SMS_PROVIDERS=mine=my_package.sms:MyProvider` configures it.
"""

from __future__ import annotations

from headgate.apps.notifications.ports import Receipt
from headgate.apps.notifications.provider import Accepted, Provider, Rejected, SmsMessage, Unavailable

__all__ = ["Accepted", "Provider", "Receipt", "Rejected", "SmsMessage", "Unavailable"]
