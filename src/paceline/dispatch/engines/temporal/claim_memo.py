"""An execution's memo, by which its outcome is reported: the claim it was started under, its lane and its priority, and
what is known of its earlier attempts.

It is the workflow's memo: business code need not know it, and `describe` returns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from paceline.dispatch.config import OnUnknown
from paceline.dispatch.model import Claim
from paceline.dispatch.ports import StartRequest
from paceline.dispatch.turns import DEFAULT_LANE, DEFAULT_PRIORITY

KEY = "paceline"


class ClaimMemo(NamedTuple):
    """The claim an execution was started under, and its place in the queue."""

    claim: Claim
    lane: str = DEFAULT_LANE
    priority: int = DEFAULT_PRIORITY
    on_unknown: str = OnUnknown.RETRY
    in_doubt: bool = False
    is_last_inquiry: bool = False
    is_used_up: bool = False

    @classmethod
    def of(cls, request: StartRequest) -> ClaimMemo:
        return cls(
            request.claim,
            request.lane,
            request.priority,
            request.config.on_unknown,
            request.in_doubt,
            request.is_last_inquiry,
            request.config.is_used_up(request.claim.retries),
        )

    def to_json(self) -> dict[str, Any]:
        item_type, item_id, epoch, retries, lock = self.claim
        claim = {"itemType": item_type, "itemId": item_id, "epoch": epoch, "retries": retries, "lock": lock}
        doubt = {"inDoubt": self.in_doubt, "isLastInquiry": self.is_last_inquiry, "isUsedUp": self.is_used_up}
        place = {"lane": self.lane, "priority": self.priority}
        return {**claim, **place, "onUnknown": self.on_unknown, **doubt}

    @classmethod
    def from_json(cls, value: Any) -> ClaimMemo | None:
        """None for anything that is not a memo: a workflow that no dispatcher started."""
        if not isinstance(value, Mapping):
            return None
        try:
            key, lock = (str(value["itemType"]), str(value["itemId"])), value.get("lock")
            claim = Claim(*key, int(value["epoch"]), int(value["retries"]), None if lock is None else str(lock))
            place = str(value["lane"]), int(value["priority"])
        except (KeyError, TypeError, ValueError):
            return None
        doubt = [value.get(name) is True for name in ("inDoubt", "isLastInquiry", "isUsedUp")]
        return cls(claim, *place, str(value.get("onUnknown")), *doubt)


class Call(NamedTuple):
    """The header of an execution's activity."""

    memo: ClaimMemo
    first: bool
    """Whether the execution has had no effect yet, so that it may still go back."""

    def to_json(self) -> dict[str, Any]:
        return {**self.memo.to_json(), "first": self.first}

    @classmethod
    def from_json(cls, value: Any) -> Call | None:
        memo = ClaimMemo.from_json(value)
        return None if memo is None else cls(memo, value.get("first") is True)
