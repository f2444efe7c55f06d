"""The SMS gateway: quotas per user, the message log, the sender, and analytics of the attempts.

model.py         quotas, messages, outcomes; the window's arithmetic, pure
ports.py         its ports: a quota store, a cache, a message log, an analytics store
intake.py        POST /api/config and POST /api/send; decided in the database, many calls in one transaction
cached_quota.py  deciding in Redis, on budgets that the database leases
items.py         messages as items of the queue; consumer.py: from Kafka into it; expiry.py: what is too late
execution.py     one attempt to send a message, through the providers of provider_chain.py
attempts.py      every attempt as an event, off the send path
inbound.py       messages of people: STOP, START, HELP, and their replies
analytics.py     rates, peaks and anomalies from those events
stores/          SQL and Redis        providers/   the console and a webhook

Whoever writes a provider imports its types from here:

    from paceline_sms import Accepted, Rejected, SmsMessage, Unavailable, Unknown

    class MyProvider:
        async def send(self, message: SmsMessage) -> Accepted | Rejected | Unknown: ...

`PACELINE_SMS_PROVIDERS=mine=my_package.sms:MyProvider` configures it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline_sms.inbound import Inbound, Reply
    from paceline_sms.ports import Receipt
    from paceline_sms.provider import (
        Accepted,
        OnUnknown,
        Provider,
        Rejected,
        SmsMessage,
        Unavailable,
        Unknown,
    )
    from paceline_sms.segments import Encoding

__all__ = [
    "Accepted",
    "Encoding",
    "Inbound",
    "OnUnknown",
    "Provider",
    "Receipt",
    "Rejected",
    "Reply",
    "SmsMessage",
    "Unavailable",
    "Unknown",
]
_ELSEWHERE = {"Receipt": "ports", "Encoding": "segments", "Inbound": "inbound", "Reply": "inbound"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Loaded on first use: every `paceline --help` imports this package, for `app`.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'provider')}"), name)
