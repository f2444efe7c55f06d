"""Redirects: what to do when Redis replies with an error. Redis has not run the command then, so a retry is safe.

A command without a reply is never retried: it may have run.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from paceline.errors import StoreError, StoreRefused, StoreUnavailable
from paceline.redis.url import Address

MAX_REDIRECTS = 5
TRY_AGAIN_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""The pauses of a command whose keys are on both sides of a slot that is moving."""
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
_LOGIN_ERRORS = {
    "WRONGPASS": "refuses the user name or the password",
    "NOAUTH": "wants a password, and none is given",
    "NOPERM": "does not permit its user what paceline does",
    "DENIED": "is in protected mode and serves its own host only",
    # Older servers give no code, nor do scripts.
    "invalid password": "refuses the password",
    "no password is set": "has no password set, but one is given",
    "without any password configured": "has no password set, but one is given",
    "The user executing the script": "does not permit its user what paceline does",
}
_LOGIN_ERROR = re.compile("|".join(f"^{start}" if start.isupper() else start for start in _LOGIN_ERRORS))
# Redis 6 wraps an error met inside a script ("ERR Error running script …: -OOM …"), Redis 7 puts its code first.
_CODE = re.compile(rf"(?:^ERR |^|-)({'|'.join(_UNAVAILABLE)}|NOSCRIPT|MOVED|ASK)\b")


class ErrorReply(NamedTuple):
    """An error as a reply, and the server that sent it."""

    error: Exception
    server: Address


class Action(Enum):
    """What to do with a command that Redis did not run."""

    WITH_SCRIPT = "send the script itself"
    MOVED = "ask the slot's new owner, from now on"
    ASK = "ask another node, this once"
    NEW_MASTER = "find the new master"
    TRY_AGAIN = "wait until all keys of the command have moved"


class Redirect(NamedTuple):
    """An action, and the server to go to, if the reply names one."""

    action: Action
    address: Address | None = None


def redirect_of(error: Exception, server: Address) -> Redirect:
    """The redirect in an error reply of `server`.

    Raises:
        StoreError: the reply is no redirect; the kind of error it stands for.
    """
    text = str(error)
    match = _CODE.search(text)
    code = match.group(1) if match else ""
    if code == "NOSCRIPT":
        return Redirect(Action.WITH_SCRIPT)
    if code in ("MOVED", "ASK"):
        host, _, port = text.split(" ")[2].rpartition(":")
        return Redirect(Action[code], Address(host or server.host, int(port)))
    if code == "READONLY":
        return Redirect(Action.NEW_MASTER)
    if code == "TRYAGAIN":
        return Redirect(Action.TRY_AGAIN)
    raise store_error(error, server)


def store_error(error: Exception, server: Address, setting: str = "redis_url") -> StoreError:
    """The `StoreError` of an error reply. `setting` names the setting that holds the login."""
    login_error = _LOGIN_ERROR.search(str(error))
    if login_error:
        return StoreRefused(setting, f"Redis at {server} {_LOGIN_ERRORS[login_error.group()]}: {str(error)[:200]}")
    match = _CODE.search(str(error))
    if match and match.group(1) in _UNAVAILABLE:
        return StoreUnavailable(f"Redis at {server} {_UNAVAILABLE[match.group(1)]}")
    return StoreError(f"Redis at {server} refused: {str(error)[:200]}")


def unreachable(address: Address, timeout: float, error: BaseException) -> StoreUnavailable:
    """The `StoreUnavailable` of a connection that failed or timed out."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"Redis at {address} did not answer within {timeout:g} s")
    return StoreUnavailable(f"Redis at {address} is unreachable: {getattr(error, 'strerror', None) or error}")


def slot_of(tag: bytes) -> int:
    """The cluster slot of a key whose hash tag is `tag`."""
    return crc_hqx(tag, 0) % SLOTS


class SlotMap:
    """Which node owns which slot of a cluster. The slots of a node that failed are stale; the others stay valid."""

    __slots__ = ("_owners", "_stale", "masters")

    def __init__(self, reply: Sequence[Any], server: Address) -> None:
        """From the reply to CLUSTER SLOTS. A node that does not know its own host is on the host of `server`."""
        self._owners: list[Address | None] = [None] * SLOTS
        self._stale: set[Address] = set()
        masters: dict[Address, None] = {}
        for first, last, (host, port, *_), *_ in reply:
            owner = Address(host.decode() if host else server.host, port)
            masters[owner] = None
            self._owners[first : last + 1] = [owner] * (last + 1 - first)
        self.masters = tuple(masters)

    def mark_stale(self, address: Address) -> None:
        self._stale.add(address)

    def lookup(self, slot: int) -> Address | None:
        """The owner; `None` if it is stale, or there is none."""
        address = self._owners[slot]
        return None if address in self._stale else address

    def owner(self, slot: int) -> Address:
        """The owner, stale or not.

        Raises:
            StoreUnavailable: no node owns the slot.
        """
        address = self._owners[slot]
        if address is None:
            raise StoreUnavailable(f"no node owns slot {slot} of the Redis cluster")
        return address
