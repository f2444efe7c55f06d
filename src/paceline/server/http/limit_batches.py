"""Fast parsing and writing of batches of decisions: a third and half of the time that their shapes take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson

from paceline.limits.model import Decision, Reason
from paceline.server.shapes.limits import MAX_PLANS, MAX_REQUESTS, dump_decision


def plain_charges(raw: bytes) -> list[tuple[str, list[str], int]] | None:
    """The charges of a valid batch; `None` for an invalid one, whose error `LimitBatchRequest` raises.

    By hand: it takes a third of the time of the shapes.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    requests = value.get("requests") if value.__class__ is dict and len(value) == 1 else None
    if requests.__class__ is not list or not 0 < len(requests) <= MAX_REQUESTS:
        return None
    charges: list[tuple[str, list[str], int]] = []
    try:
        for request in requests:
            key, plans = request["key"], request["plans"]
            size = len(request)
            cost = 1 if size == 2 else request["cost"]
            if size > 3 or key.__class__ is not str or cost.__class__ is not int or plans.__class__ is not list:
                return None
            if not 0 < len(plans) <= MAX_PLANS:
                return None
            for plan in plans:
                if plan.__class__ is not str:
                    return None
            charges.append((key, plans, cost))
    except (KeyError, TypeError):
        return None
    return charges


def dump_decisions(results: Sequence[Decision | dict[str, Any]]) -> bytes:
    """A `DecisionsShown` as JSON text. A `dict` is the problem of a request that can't be decided.

    Most batches have decisions of one plan each. Such decisions differ in three numbers, and the text between them is
    the same: joining it takes half the time of `dump_decision`.
    """
    numbers: list[float] = []
    for result in results:
        if result.__class__ is not Decision or result.chain:
            return orjson.dumps(
                {
                    "decisions": [
                        dump_decision(result) if isinstance(result, Decision) else {"error": result}
                        for result in results
                    ]
                }
            )
        numbers += result[1], result[3] / 1_000_000, result[4] / 1_000_000
    texts = iter(orjson.dumps(numbers)[1:-1].decode().split(","))
    decisions = []
    for (allowed, _, limit, _, _, plan, reason, degraded, _), left, retry, reset in zip(
        results, texts, texts, texts, strict=False
    ):
        a, b, c, d, e, f, g = _text_between(allowed, limit, plan, reason, degraded)
        decisions.append(f"{a}{left}{b}{retry}{c}{reset}{d}{left}{e}{retry}{f}{reset}{g}")
    return f'{{"decisions":[{",".join(decisions)}]}}'.encode()


@lru_cache(maxsize=1000)
def _text_between(allowed: bool, limit: int, plan: str, reason: Reason, degraded: bool) -> list[str]:
    """The JSON text of a decision of one plan before, between and after its numbers."""
    text = orjson.dumps(dump_decision(Decision.of(allowed, 0, limit, 0, 0, plan, reason, degraded))).decode()
    # No name can contain these: its quotation marks are escaped.
    for number in ('"remaining":0', '"retryAfter":0.0', '"resetAfter":0.0'):
        text = text.replace(number, number.rstrip("0.") + "\0")
    return text.split("\0")
