"""Decisions as HTTP: the fields of draft-ietf-httpapi-ratelimit-headers-10, `Retry-After`, and the problem.

    RateLimit-Policy: "gold";q=10;w=10, "daily";q=1000;w=86400      what holds
    RateLimit: "gold";r=5;t=1, "daily";r=904;t=3600                 what is left, and when there is more
    Retry-After: 3                                                  on denials only: seconds until admitted

All numbers are integers, times rounded up. Shadow plans are not shown: they never deny.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from math import ceil
from typing import Any, TypeAlias
from urllib.parse import quote
from weakref import WeakKeyDictionary

from paceline.durations import duration_us
from paceline.limits.model import Concurrency, Decision, Gcra, PlanState, Reason, Rule, Spec, TokenBucket
from paceline.limits.rates import without_scope

POLICY = "RateLimit-Policy"
LIMIT = "RateLimit"
RETRY_AFTER = "Retry-After"
RAW_LIMIT = LIMIT.lower().encode()
RAW_RETRY_AFTER = RETRY_AFTER.lower().encode()

PROBLEM_JSON = "application/problem+json"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
TITLE = "Rate Limit Exceeded"

RawFields: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Response fields in ASGI's form."""

LARGEST = 10**15 - 1
"""The largest integer a structured field can carry."""

ASCII = "".join(map(chr, range(0x20, 0x7F)))
OK = Reason.OK  # looked up once: enum attribute access is slow
NEVER = Reason.EXCEEDS_CAPACITY
UNKNOWN = (Reason.FAIL_OPEN, Reason.FAIL_CLOSED)
"""Decisions made without the store: what is left is unknown."""


def fields(decision: Decision, rules: Sequence[Rule], keys: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """The response fields of a decision on the chain of `rules`, in the order of the call.

    With `keys`, one per rule, each item carries its partition key. Without, a plan that holds for several keys is one
    item, that of the key with the least left.
    """
    if len(rules) == 1 and keys is None and not rules[0].shadow:
        # The common case, part of every request.
        prepared_rule = prepared_fields(rules[0])
        if decision.reason is OK:
            return [prepared_rule.policy, (LIMIT, prepared_rule.item(decision))]
        result = [prepared_rule.policy]
        if decision.reason not in UNKNOWN:
            result.append((LIMIT, limit_item(decision, rules[0].spec)))
        return result if decision.allowed or decision.reason is NEVER else [*result, _retry_field(decision)]
    partitions = [None] * len(rules) if keys is None else [partition(key) for key in keys]
    specs = {
        (rule.plan, partition_key): rule.spec
        for rule, partition_key in zip(rules, partitions, strict=True)
        if not rule.shadow
    }
    result = []
    if specs:
        result.append(
            (POLICY, ", ".join(policy_item(plan, spec, partition_key) for (plan, partition_key), spec in specs.items()))
        )
    if specs and decision.reason not in UNKNOWN:
        least: dict[tuple[str, str | None], PlanState] = {}
        for state, partition_key in zip(decision.states, partitions, strict=False):
            item = (state.plan, partition_key)
            if item in specs and (item not in least or _urgency(state) < _urgency(least[item])):
                least[item] = state
        if least:
            items = (limit_item(state, specs[item], item[1]) for item, state in least.items())
            result.append((LIMIT, ", ".join(items)))
    if not (decision.allowed or decision.reason is NEVER):
        result.append(_retry_field(decision))
    return result


def raw_fields(decision: Decision, rules: Sequence[Rule]) -> RawFields:
    """`fields` in bytes and lower case, as ASGI wants them."""
    if decision.reason is OK and len(rules) == 1 and not rules[0].shadow:
        return prepared_fields(rules[0]).raw_fields(decision)
    return [(name.lower().encode(), value.encode()) for name, value in fields(decision, rules)]


def legacy_fields(decision: Decision, now: float) -> list[tuple[str, str]]:
    """`X-RateLimit-*` of the plan that bound the decision, as slowapi, flask-limiter and GitHub send them.

    `X-RateLimit-Reset` is a Unix time in seconds: when the plan is as new; on a denial, when a lone caller is admitted.
    """
    if decision.reason in UNKNOWN or (decision.chain and all(state.shadow for state in decision.chain)):
        return []
    wait_us = decision.retry_after_us or decision.reset_after_us
    return [
        ("X-RateLimit-Limit", str(decision.limit)),
        ("X-RateLimit-Remaining", str(decision.remaining)),
        ("X-RateLimit-Reset", str(ceil(now + wait_us / 1_000_000))),
    ]


_LISTS = {POLICY.lower(), LIMIT.lower()}
_LEGACY = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
_MERGED = {*_LISTS, *_LEGACY, RETRY_AFTER.lower()}


def merge(own: Iterable[tuple[str, str]], fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The fields of several limits, or of a response and a limit, as those of one response.

    Lists are joined, `Retry-After` is the longest, and `X-RateLimit-*` are those of the limit with the least left. All
    other fields stay as they are.
    """
    own, both = [*own], [*own, *fields]
    shared = _MERGED & {name.lower() for name, _ in own} & {name.lower() for name, _ in both[len(own) :]}
    if not shared:
        return both
    values = {name: [value for field, value in both if field.lower() == name] for name in shared}
    merged = {name: _joined(values[name]) for name in shared & _LISTS}
    if shared.intersection(_LEGACY):
        place = _tightest(*(values.get(name, []) for name in _LEGACY))
        merged |= {name: values[name][place] for name in shared.intersection(_LEGACY)}
    for name in shared - merged.keys():
        merged[name] = max(values[name], key=_whole)
    result = []
    for name, value in both:
        known = name.lower()
        if known not in shared:
            result.append((name, value))
        elif known in merged:
            result.append((name, merged.pop(known)))
    return result


def merge_raw(own: Iterable[tuple[bytes, bytes]], fields: RawFields) -> list[tuple[bytes, bytes]]:
    """`merge` in ASGI's form."""
    own = [*own]
    names = {name for name, _ in fields}
    if not any(bytes(name).lower() in names for name, _ in own):
        return [*own, *fields]
    texts = (
        [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in some]
        for some in (own, fields)
    )
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in merge(*texts)]


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _tightest(limits: Sequence[str], left: Sequence[str], resets: Sequence[str]) -> int:
    """The place of the limit with the least left, and of those the one that is left longest."""
    if not len(limits) == len(left) == len(resets):
        return -1  # not all of them are sets of three
    return min(range(len(left)), key=lambda place: (_whole(left[place]), -_whole(resets[place])))


def _whole(value: str) -> int:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else 0


def policy_item(plan: str, spec: Spec, partition_key: str | None = None) -> str:
    """One item of `RateLimit-Policy`. The window of a token bucket is the time it takes to fill; what
    is paced shows its rate, and places have a unit instead."""
    quota = spec.rate.limit if isinstance(spec, Gcra) else spec.size
    item = f"{string(without_scope(plan))};q={min(quota, LARGEST)}"
    if isinstance(spec, Concurrency):
        item += ';qu="concurrent-requests"'
    else:
        item += f";w={seconds_up(_window_us(spec)) or 1}"
    return item if partition_key is None else f"{item};pk={partition_key}"


def limit_item(state: PlanState | Decision, spec: Spec, partition_key: str | None = None) -> str:
    """One item of `RateLimit`."""
    more = seconds_up(_more_after_us(state, spec))
    item = f"{string(without_scope(state.plan))};r={min(state.remaining, LARGEST)};t={more}"
    return item if partition_key is None else f"{item};pk={partition_key}"


def partition(key: str) -> str:
    """The partition key of a key: the first 12 bytes of its SHA-256, so that a secret key stays one."""
    return f":{b64encode(sha256(key.encode()).digest()[:12]).decode()}:"


def retry_after(decision: Decision) -> int:
    """Whole seconds after which a lone caller is admitted: at least 1, so that no client retries immediately."""
    return seconds_up(decision.retry_after_us) or 1


def violated(decision: Decision) -> list[str]:
    """The plans that denied."""
    denied = dict.fromkeys(state.plan for state in decision.states if not state.allowed and not state.shadow)
    return list(dict.fromkeys(map(without_scope, denied or [decision.plan])))


def problem(decision: Decision) -> dict[str, Any]:
    """The body of a denial, RFC 9457."""
    wait = retry_after(decision)
    plans = violated(decision)
    named = " and ".join(f"plan {plan!r}" for plan in plans)
    if decision.reason is Reason.FAIL_CLOSED:
        kind, detail = REDUCED_CAPACITY, f"can't check {named} just now; retry after {wait} s"
    elif decision.reason is NEVER:
        kind, detail = QUOTA_EXCEEDED, f"the cost is above the limit of this key under {named}; it is never admitted"
    else:
        kind, detail = QUOTA_EXCEEDED, f"no room under {named}; retry after {wait} s"
    return {
        "type": kind,
        "title": TITLE,
        "status": 429,
        "detail": detail,
        "violated-policies": plans,
        "retryAfter": decision.retry_after,
        "reason": decision.reason.value,
    }


def _retry_field(decision: Decision) -> tuple[str, str]:
    return RETRY_AFTER, str(retry_after(decision))


@lru_cache(1024)
def string(text: str) -> str:
    """A structured-field string; what is not ASCII is percent-encoded, because such strings can't carry it."""
    plain = text if text.isascii() else quote(text, safe=ASCII)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def seconds_up(us: int) -> int:
    """Microseconds as seconds, rounded up."""
    return -(-us // 1_000_000)


class PreparedFields:
    """What stays the same for a rule: its policy, the start of its item, and the refill of a bucket."""

    __slots__ = ("_gain", "_raw", "_start", "_unit", "policy")

    def __init__(self, rule: Rule) -> None:
        item = policy_item(rule.plan, rule.spec)
        self.policy = (POLICY, item)
        self._start = f"{string(without_scope(rule.plan))};r="
        self._unit, self._gain = (rule.spec.unit, rule.spec.gain) if isinstance(rule.spec, TokenBucket) else (0, 0)
        raw_policy = (POLICY.lower().encode(), item.encode())
        self._raw = lru_cache(1024)(lambda left, more: (raw_policy, (RAW_LIMIT, self._item(left, more).encode())))

    def raw_fields(self, decision: Decision) -> RawFields:
        """`fields` of a decision that admitted, in bytes and lower case, as ASGI wants them."""
        remaining, more_us = decision.remaining, decision.reset_after_us
        if self._gain:
            spent = decision.limit - remaining
            if spent > 1:
                more_us -= (spent - 1) * self._unit // self._gain
        return self._raw(remaining, -(-more_us // 1_000_000) if more_us > 0 else 0)

    def item(self, decision: Decision) -> str:
        """`limit_item` of a decision that admitted."""
        return self.raw_fields(decision)[1][1].decode()

    def _item(self, remaining: int, more: int) -> str:
        return f"{self._start}{remaining if remaining <= LARGEST else LARGEST};t={more}"


_prepared_fields: WeakKeyDictionary[Rule, PreparedFields] = WeakKeyDictionary()


def prepared_fields(rule: Rule) -> PreparedFields:
    """A rule's `PreparedFields`, made once. It keeps no rule alive: stores drop the keys of deleted rules."""
    cached = _prepared_fields.get(rule)
    if cached is None:
        cached = _prepared_fields[rule] = PreparedFields(rule)
    return cached


def _window_us(spec: Spec) -> int:
    if isinstance(spec, Gcra):
        return duration_us(spec.rate.span)
    return spec.life_us if isinstance(spec, TokenBucket) else spec.window_us


def _more_after_us(state: PlanState | Decision, spec: Spec) -> int:
    """When there is more than now: for a denial, enough; for a bucket, the next token; for a window, its end."""
    if not state.allowed:
        return state.retry_after_us or state.reset_after_us
    spent = state.limit - state.remaining
    if isinstance(spec, TokenBucket) and spent > 0:
        return max(state.reset_after_us - (spent - 1) * spec.unit // spec.gain, 0)
    return state.reset_after_us


def _urgency(state: PlanState) -> tuple[bool, int, int]:
    return state.allowed, -state.retry_after_us, state.remaining
