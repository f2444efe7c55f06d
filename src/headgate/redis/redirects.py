"""What to do when Redis answers with an error. Redis has then run nothing, so going another way counts nothing twice.

A command that was sent and never answered has no remedy: it may have run.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from headgate.errors import StoreError, StoreRefused, StoreUnavailable
from headgate.redis.url import Address

MOST_REMEDIES = 5
SLOTS = 16_384

_UNAVAILABLE = {
    "LOADING": "is loading its data",
    "CLUSTERDOWN": "has slots without a master",
    "TRYAGAIN": "is moving the key",
    "MASTERDOWN": "has lost its master",
    "BUSY": "is busy with a script",
    "OOM": "is out of memory",
    "MISCONF": "can't save its data and takes no writes",
    "NOREPLICAS": "has too few replicas to write to",
    "READONLY": "is a replica now",
    "max number of clients": "takes no more connections",
}
_REFUSED = {
    "WRONGPASS": "refuses the user name or the password",
    "NOAUTH": "wants a password, and none is given",
    "NOPERM": "does not permit its user what headgate does",
    "DENIED": "is in protected mode and serves its own host only",
    # Older servers give no code, nor do scripts.
    "invalid password": "refuses the password",
    "no password is set": "has no password set, but one is given",
    "without any password configured": "has no password set, but one is given",
    "The user executing the script": "does not permit its user what headgate does",
}
_REFUSAL = re.compile("|".join(f"^{start}" if start.isupper() else start for start in _REFUSED))
# Redis 6 wraps an error met inside a script ("ERR Error running script …: -OOM …"), Redis 7 puts its code first.
_CODE = re.compile(rf"(?:^ERR |^|-)({'|'.join(_UNAVAILABLE)}|NOSCRIPT|MOVED|ASK)\b")


class Refused(NamedTuple):
    """An error as an answer, and who gave it."""

    error: Exception
    by: Address


class Way(Enum):
    """How to go on."""

    WITH_SCRIPT = "send the script itself"
    MOVED = "ask the slot's new owner, from now on"
    ASK = "ask another node, this once"
    NEW_MASTER = "find the new master"


class Remedy(NamedTuple):
    """A way, and the address it leads to, where there is one."""

    way: Way
    address: Address | None = None


def remedy(error: Exception, asked: Address) -> Remedy:
    """The remedy for an error reply of `asked`; raises the right `StoreError` if there is none."""
    text = str(error)
    found = _CODE.search(text)
    code = found.group(1) if found else ""
    if code == "NOSCRIPT":
        return Remedy(Way.WITH_SCRIPT)
    if code in ("MOVED", "ASK"):
        host, _, port = text.split(" ")[2].rpartition(":")
        return Remedy(Way[code], Address(host or asked.host, int(port)))
    if code == "READONLY":
        return Remedy(Way.NEW_MASTER)
    raise refusal(error, asked)


def refusal(error: Exception, asked: Address, setting: str = "redis_url") -> StoreError:
    """An error reply as headgate's error. `setting` says where the login was written."""
    turned_away = _REFUSAL.search(str(error))
    if turned_away:
        return StoreRefused(setting, f"Redis at {asked} {_REFUSED[turned_away.group()]}: {str(error)[:200]}")
    found = _CODE.search(str(error))
    if found and found.group(1) in _UNAVAILABLE:
        return StoreUnavailable(f"Redis at {asked} {_UNAVAILABLE[found.group(1)]}")
    return StoreError(f"Redis at {asked} refused: {str(error)[:200]}")


def unreachable(address: Address, timeout: float, error: BaseException) -> StoreUnavailable:
    """Trouble on the way to Redis as headgate's error."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"Redis at {address} did not answer within {timeout:g} s")
    return StoreUnavailable(f"Redis at {address} is unreachable: {getattr(error, 'strerror', None) or error}")


def slot_of(tag: bytes) -> int:
    """The cluster slot of a key whose hash tag is `tag`."""
    return crc_hqx(tag, 0) % SLOTS


class SlotMap:
    """Who owns which slot of a cluster. What is known of a node that failed is in doubt; the rest stays good."""

    __slots__ = ("_doubted", "_owners", "masters")

    def __init__(self, reply: Sequence[Any], asked: Address) -> None:
        """From the reply to CLUSTER SLOTS. A node that does not know its own host is where we asked."""
        self._owners: list[Address | None] = [None] * SLOTS
        self._doubted: set[Address] = set()
        masters: dict[Address, None] = {}
        for first, last, (host, port, *_), *_ in reply:
            owner = Address(host.decode() if host else asked.host, port)
            masters[owner] = None
            self._owners[first : last + 1] = [owner] * (last + 1 - first)
        self.masters = tuple(masters)

    def doubt(self, address: Address) -> None:
        self._doubted.add(address)

    def known(self, slot: int) -> Address | None:
        """The owner, or `None` if that has to be asked anew."""
        address = self._owners[slot]
        return None if address in self._doubted else address

    def owner(self, slot: int) -> Address:
        """The owner, in doubt or not."""
        address = self._owners[slot]
        if address is None:
            raise StoreUnavailable(f"nobody owns slot {slot} of the Redis cluster")
        return address
