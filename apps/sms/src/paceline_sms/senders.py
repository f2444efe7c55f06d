"""Who a message is from: a number, a short code or a name, by the country of its recipient."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from paceline.errors import ConfigurationError

_PREFIX = re.compile(r"\+[0-9]{0,15}")
_SENDER = re.compile(r"\+?[0-9]{1,20}|(?=.*[A-Za-z])[A-Za-z0-9 ._-]{1,11}|MG[0-9a-f]{32}")


class Senders:
    """Pools of senders, by what a number begins with. The longest one that matches wins; `+` matches all.

        Senders({"+49": ["Shop"], "+1": ["+15005550006", "+15005550007"]}).sender_of("+491701234567")

    Raises:
        ConfigurationError: A prefix or a sender can't be one, or a pool is empty.
    """

    def __init__(self, pools: Mapping[str, Sequence[str]]) -> None:
        for prefix, pool in pools.items():
            if not _PREFIX.fullmatch(prefix):
                raise ConfigurationError("senders", f"{prefix!r:.40} is no beginning of a number, as +49")
            if not pool:
                raise ConfigurationError("senders", f"{prefix} has no sender")
            for sender in pool:
                if not isinstance(sender, str) or not _SENDER.fullmatch(sender):
                    problem = "is no sender: a number, a short code, a name of up to 11 characters, or an SID of Twilio"
                    raise ConfigurationError("senders", f"{sender!r:.40} of {prefix} {problem}")
        self._pools = {prefix: tuple(pool) for prefix, pool in pools.items()}

    def sender_of(self, phone: str | None) -> str | None:
        """The sender of messages to a number; None if no pool is for it. It is the same for each message, also while
        others join or leave the pool."""
        prefixes = () if phone is None else (phone[:length] for length in range(len(phone), 0, -1))
        pool = next((self._pools[prefix] for prefix in prefixes if prefix in self._pools), ())
        return max(pool, key=lambda sender: blake2b(f"{phone}/{sender}".encode()).digest(), default=None)
