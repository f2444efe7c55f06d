"""The commands of the Redis limit stores and their replies: bytes and values, no input or output."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

from paceline.errors import ConfigurationError
from paceline.limits import holds
from paceline.limits.chain import conclude
from paceline.limits.keys import KeyStart
from paceline.limits.model import (
    CalendarWindow,
    Charge,
    Concurrency,
    Decision,
    Reason,
    Rule,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from paceline.limits.ports import Hold, Settlement
from paceline.redis.protocol import Script, packed, word
from paceline.redis.redirects import slot_of

_LUA = Path(__file__).with_name("lua")
_CHARGE = struct.Struct("<BBdddddd")
_VERDICT = struct.Struct("<qqqq")
_unpack_verdict = _VERDICT.unpack_from
_OK, _DENIED = Reason.OK, Reason.DENIED  # looked up once: enum attribute access is slow
_SPEND = word(b"s")
_MAX_CACHED = 10_000
_SETTLEMENTS = {1: Settlement.APPLIED, 0: Settlement.REPEATED, -1: Settlement.UNKNOWN}


MAX_TIMES = 128
"""The most decisions of one script run: Redis serves no other client meanwhile."""


class Run(NamedTuple):
    """One run of the script for equal chains, and which of the chains they were."""

    chain: Sequence[Charge]
    positions: list[int]


def runs_of(chains: Sequence[Sequence[Charge]]) -> list[Run]:
    """`chains` as runs of the script. Equal chains share a run, unless one between them is on a key of theirs: chains
    on the same key are decided in their order."""
    runs: list[Run] = []
    last: dict[str, Run] = {}
    for position, chain in enumerate(chains):
        run = last.get(chain[0].key)
        if run is not None and run.chain == chain and len(run.positions) < MAX_TIMES:
            shared = all(last.get(charge.key) is run for charge in chain)
        else:
            shared = False
        if run is None or not shared:
            run = Run(chain, [])
            runs.append(run)
            for charge in chain:
                last[charge.key] = run
        run.positions.append(position)
    return runs


class Commands:
    """The calls of a limit store, each as one Redis command."""

    def __init__(self, prefix: str = "") -> None:
        self.script = _admission()
        self._prefix = prefix.encode()
        self._start = self._prefix + b"rate_limiter:{"
        self._heads: dict[tuple[int, bool], bytes] = {}
        self._ends: dict[tuple[Rule, int], tuple[bytes, bytes]] = {}
        """What follows the key in a state's name, and the packed charge, by rule and cost."""

    def spending(self, chain: Sequence[Charge], now_us: int | None = None, times: int = 1) -> bytes:
        """The command that decides and spends, `times` times one after another. This is the hot path."""
        shape = (len(chain), times == 1)
        ends = self._ends
        words = [self._heads.get(shape) or self._head(shape)]
        charges = [_SPEND if now_us is None else word(b"s%d" % now_us)]
        for key, rule, cost in chain:
            suffix, charge = ends.get((rule, cost)) or self._end(rule, cost, now_us)
            if key[0] in "%}":
                key = _escaped(key)
            name = self._start + key.encode() + suffix
            words.append(b"$%d\r\n%b\r\n" % (len(name), name))
            charges.append(charge)
        if times > 1:
            charges.append(word(b"%d" % times))
        return b"".join(words + charges)

    def deciding(self, chain: Sequence[Charge], spend: bool, hold: Hold | None, now_us: int | None) -> bytes:
        keys, charges = self._words(chain, now_us)
        if spend and hold is not None:
            mode = b"c" if hold.places else b"h"
            keys.append(word(hold_name(holds.held_part(chain, hold.places), hold.id, self._prefix)))
            charges.append(word(b"%d" % hold.ttl_us))
        else:
            mode = b"s" if spend else b"p"
        return self._call(mode, keys, charges, now_us)

    def refunding(self, chain: Sequence[Charge], now_us: int | None) -> bytes:
        return self._call(b"r", *self._words(chain, now_us), now_us)

    def settling(self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], now_us: int | None) -> bytes:
        costs = holds.per_charge(actual, chain)
        actuals = [Charge(charge.key, charge.rule, cost) for charge, cost in zip(chain, costs, strict=True)]
        keys, charges = self._words(actuals, now_us)
        keys.append(word(hold_name(chain, hold_id, self._prefix)))
        return self._call(b"t", keys, charges, now_us)

    def renewing(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, now_us: int | None) -> bytes:
        keys, charges = self._words([Charge(charge.key, charge.rule, 0) for charge in chain], now_us)
        keys.append(word(hold_name(chain, hold_id, self._prefix)))
        return self._call(b"n", keys, [*charges, word(b"%d" % ttl_us)], now_us)

    def resetting(self, chain: Sequence[Charge]) -> bytes:
        return packed(b"DEL", *names(chain, self._prefix))

    def _words(self, chain: Sequence[Charge], now_us: int | None) -> tuple[list[bytes], list[bytes]]:
        """The names of a chain's states and its charges, packed."""
        keys, charges = [], []
        for key, rule, cost in chain:
            suffix, charge = self._ends.get((rule, cost)) or self._end(rule, cost, now_us)
            keys.append(word(_name(self._start, key, suffix)))
            charges.append(charge)
        return keys, charges

    def _call(self, mode: bytes, keys: Sequence[bytes], charges: Sequence[bytes], now_us: int | None) -> bytes:
        head = self.script.head(len(keys), 1 + len(charges))
        return b"".join((head, *keys, word(mode + _time(now_us)), *charges))

    def _head(self, shape: tuple[int, bool]) -> bytes:
        count, once = shape
        head = self._heads[shape] = self.script.head(count, count + (1 if once else 2))
        return head

    def _end(self, rule: Rule, cost: int, now_us: int | None) -> tuple[bytes, bytes]:
        if len(self._ends) >= _MAX_CACHED:
            # Bounded: reloading plans makes new rules, and costs vary.
            self._ends.clear()
        end = (_suffix(rule.plan), word(_charge(rule, cost, now_us)))
        if not isinstance(rule.spec, CalendarWindow):  # its edges move on
            self._ends[rule, cost] = end
        return end


def decision(chain: Sequence[Charge], reply: bytes, time: int = 0) -> Decision:
    """The decision in a reply to `spending` or `deciding`; of several, number `time`."""
    if len(chain) == 1 and not (rule := chain[0].rule).shadow and chain[0].cost <= rule.size and not len(reply) & 31:
        # `conclude` in line, for the commonest call.
        fits, left, retry, reset = _unpack_verdict(reply, time << 5)
        return Decision((fits == 1, left, rule.size, retry, reset, rule.owner, _OK if fits else _DENIED, False, ()))
    verdicts = []
    size = _VERDICT.size * len(chain)
    for at in range(time * size, (time + 1) * size, _VERDICT.size):
        fits, left, retry, reset = _VERDICT.unpack_from(reply, at)
        verdicts.append((fits == 1, left, retry, reset))
    ruling = conclude(chain, verdicts)
    if len(reply) % _VERDICT.size:  # the hold is recorded already
        return ruling.but(allowed=True, retry_after_us=0, reason=Reason.OK)
    return ruling


def settlement(reply: Any) -> Settlement:
    return _SETTLEMENTS[reply]


def names(chain: Sequence[Charge], prefix: bytes = b"") -> list[bytes]:
    """The keys a chain's states are kept under: `rate_limiter:{<key>}:<plan>`."""
    return [_name(prefix + b"rate_limiter:{", charge.key, _suffix(charge.rule.plan)) for charge in chain]


def hold_name(chain: Sequence[Charge], hold_id: str, prefix: bytes = b"") -> bytes:
    """The key a hold is recorded under, in the same slot as its chain: `rate_limiter_hold:{<key>}:<id>:<digest>`."""
    key, name = holds.hold_name(hold_id, chain)
    return _name(prefix + b"rate_limiter_hold:{", key, _suffix(name))


def common_slot(chain: Sequence[Charge]) -> int:
    """The slot of a chain in a cluster. Keys in braces of their own, such as `{acme}:user` and `{acme}:ip`, share the
    slot of what is between the first braces."""
    tag = _tag(chain[0].key)
    for charge in chain[1:]:
        if charge.key != chain[0].key and _tag(charge.key) != tag:
            raise _cross_slot(repr(chain[0].key), repr(charge.key))
    return slot_of(tag)


def check_slots(keys: Sequence[Sequence[KeyStart]]) -> None:
    """Checks that the keys of a chain, each given by its possible prefixes, can share a hash tag.

    Raises:
        ConfigurationError: two keys are certain to be in different slots.
    """
    for first, second in combinations(keys, 2):
        pairs = list(product(first, second))
        if pairs and not any(_may_share_tag(*pair) for pair in pairs):
            raise _cross_slot(str(pairs[0][0]), str(pairs[0][1]))


def _may_share_tag(one: KeyStart, other: KeyStart) -> bool:
    (tag, is_whole), (other_tag, other_is_whole) = _tag_start(one), _tag_start(other)
    if is_whole and other_is_whole:
        return tag == other_tag
    return (not other_is_whole and tag.startswith(other_tag)) or (not is_whole and other_tag.startswith(tag))


def _tag_start(start: KeyStart) -> tuple[bytes, bool]:
    """How the hash tag begins, and whether that is all of it."""
    text, is_whole = start
    return (_tag(text) if text else b"", is_whole or "}" in text[1:])


def _cross_slot(first: str, second: str) -> ConfigurationError:
    return ConfigurationError(
        "key",
        f"a Redis Cluster can't decide on {first} and {second} at once, they may live on "
        "different nodes; use one key, or write what they share in braces: {acme}:user and {acme}:address",
    )


def _tag(key: str) -> bytes:
    if key[0] in "%}":
        key = _escaped(key)
    return key.partition("}")[0].encode()


def _name(prefix: bytes, key: str, suffix: bytes) -> bytes:
    if key[0] in "%}":
        key = _escaped(key)
    return prefix + key.encode() + suffix


def _escaped(key: str) -> str:
    # A key that began with a brace would leave the hash tag empty, and its plans would be spread over slots.
    return ("%25" if key[0] == "%" else "%7D") + key[1:]


def _suffix(name: str) -> bytes:
    # No brace after the one that closes the key: so no key and plan together look like another key and plan.
    return b"}:" + name.replace("%", "%25").replace("}", "%7D").encode()


def _charge(rule: Rule, cost: int, now_us: int | None) -> bytes:
    spec = rule.spec
    if isinstance(spec, TokenBucket):
        a, b, c = spec.unit, spec.gain, spec.full
    elif isinstance(spec, CalendarWindow):
        a, b, c = spec.edges(time_ns() // 1000 if now_us is None else now_us)
    elif isinstance(spec, SlidingWindow):
        a, b, c = spec.window_us, spec.grain_us, spec.grains
    elif isinstance(spec, SlidingLog | Concurrency):
        a, b, c = spec.window_us, spec.grain_us, 0
    else:
        a, b, c = spec.window_us, 0, 0
    return _CHARGE.pack(spec.tag, rule.shadow, cost, spec.size, spec.life_us, a, b, c)


def _time(now_us: int | None) -> bytes:
    return b"" if now_us is None else b"%d" % now_us


@lru_cache
def _admission() -> Script:
    return Script(_LUA, "log", "admission")
