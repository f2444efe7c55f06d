"""Key tables: the states of one plan and spec, in segments by when a key was last used.

A key that is used moves to the young segment. A segment that was closed longer ago than any state of the spec lives
holds only states that are as new: it is dropped, a few keys with every call, so that no call pays for all of them. Time
closes the young segment; once a table is half full, so does its size. At its bound a table evicts the first keys of the
oldest segment: the least recently used, to within a segment.

Exact order would cost every decision (a key that is put last in a `dict` is deleted and inserted) or every key (an
`OrderedDict` takes 100 bytes more).

A `dict` that grows is rebuilt in one go, which takes 0.1 s at ten million keys. So a segment of a large table consists
of parts, by the hash of the key: one small `dict` is rebuilt at a time. Small tables have one part, which is faster.

Python's garbage collector walks every `dict` that holds a tuple, which takes 1.6 s at ten million keys. So the states
of a large table are integers or bytes (`compact`): a `dict` of these is never walked. From Python 3.14 on it would be,
unless it is untracked (`_untracked_dict`). Tuples are faster, and small tables have them.

A signal handler may raise within any of these functions (Ctrl-C, a worker's time limit): see `SpinLock`.
"""

from __future__ import annotations

import gc
import marshal
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from paceline.limits.algorithms import State
from paceline.limits.model import Spec

SHORTEST_GENERATION_US = 60_000_000
DROPPED_PER_CALL = 32
SEGMENTS = 16
"""The young segment is closed when it holds `max_keys / SEGMENTS` keys."""
MAX_SEGMENTS = 24
"""How many older segments there are at most, before two are merged: keys that are used leave them."""
EVICTION_BATCH = 1024
MERGED_PER_CALL = 64
LARGEST_PART = 150_000
"""The most keys of a table with one part. At 100,000 keys, rebuilding a `dict` takes 1 ms, and walking it a few."""
PARTS = 256
"""Of a segment of a large table. At ten million keys a part has 40,000."""
PART_MASK = PARTS - 1

Part: TypeAlias = dict[str, Any]
"""Packed states by key, in the order in which they came."""


class _Segment:
    """Keys that were last used before `closed_us`. Compared by identity."""

    __slots__ = ("closed_us", "parts")

    def __init__(self, parts: Sequence[Part], closed_us: int) -> None:
        self.parts = parts
        self.closed_us = closed_us

    def part(self, key: str) -> Part:
        """The part of a key."""
        parts = self.parts
        return parts[0] if len(parts) == 1 else parts[hash(key) & PART_MASK]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


class KeyTable:
    """The packed states of one plan and spec: the young segment, and older ones."""

    __slots__ = (
        "_close_at_us", "_drops", "_eviction_part", "_eviction_queue", "_max_keys", "_merging", "_older",
        "_older_count", "_segment_size", "_span_us", "_young_count", "alone", "evict_at_us", "parts", "rule_count",
        "spec", "young",
    )  # fmt: skip

    def __init__(self, spec: Spec, max_keys: int) -> None:
        self.spec: Spec | None = spec
        self.alone = True
        """Whether this plan has no other table, so that a key missing here is missing."""
        self.rule_count = 0
        """How many live rules use this table."""
        self.young: Part | None = {}
        """The young segment of a small table; `None` if it has `PARTS` parts."""
        self.parts: Sequence[Part] = (self.young,)
        """The parts of the young segment."""
        self._young_count = 0
        """The keys of the young segment, if it has several parts; perhaps a few too many."""
        self._older: list[_Segment] = []
        """The oldest first."""
        self._older_count = 0
        self._merging: tuple[_Segment, _Segment] | None = None
        """The keys of the first are being moved to the second."""
        self._drops: list[Part] = []
        self._eviction_queue: list[str] = []
        """The next keys of the oldest segment to be evicted, last to first; some may have been used since."""
        self._eviction_part = 0
        self._max_keys = max_keys
        self._segment_size = max(max_keys // SEGMENTS, 1)
        self._span_us = max(spec.life_us, SHORTEST_GENERATION_US)
        self._close_at_us: int | None = None
        self.evict_at_us = -(2**62)
        """When to call `evict_expired` next."""

    def __len__(self) -> int:
        """How many states are in memory, also those that are yet to be dropped."""
        return sum(map(len, self.parts)) + self._older_count + sum(map(len, self._drops))

    @property
    def empty(self) -> bool:
        """Whether nothing is left, not even to be dropped."""
        return len(self) == 0

    def part(self, key: str) -> Part:
        """The part of the young segment that has a key, or would have it."""
        young = self.young
        return self.parts[hash(key) & PART_MASK] if young is None else young

    def read(self, key: str) -> State | None:
        packed = self.part(key).get(key)
        for segment in self._older if packed is None else ():
            packed = segment.part(key).get(key)
            if packed is not None:
                break
        return None if packed is None else self.unpack(packed)

    def write(self, key: str, state: State, now_us: int) -> None:
        if now_us >= self.evict_at_us:
            self.evict_expired(now_us)
        if key not in self.part(key):
            self._pop_older(key)
            self.make_room(now_us)
        self.store(key, self.pack(state))

    def touch(self, key: str, now_us: int) -> None:
        """Moves a known key to the young segment."""
        if key not in self.part(key) and (packed := self._pop_older(key)) is not None:
            self.make_room(now_us)
            self.store(key, packed)

    def forget(self, key: str) -> None:
        if self.part(key).pop(key, None) is None:
            self._pop_older(key)
        else:
            self._young_count -= 1

    def store(self, key: str, packed: Any) -> None:
        """Puts a packed state, of a small table or a large one, into the young segment."""
        young = self.young
        if young is None:
            self.parts[hash(key) & PART_MASK][key] = self.compact(packed)
        else:
            young[key] = packed

    def pack(self, state: State) -> Any:
        """A state as a small table has it."""
        return state

    def compact(self, packed: Any) -> Any:
        """A packed state as a large table has it: nothing that the garbage collector tracks."""
        return marshal.dumps(packed) if packed.__class__ is tuple else packed

    def unpack(self, packed: Any) -> State:
        """The state, packed or compact."""
        return marshal.loads(packed) if packed.__class__ is bytes else packed  # type: ignore[no-any-return]

    def evict_expired(self, now_us: int) -> None:
        """Closes the young segment when it is time, and drops a few expired keys."""
        if self._close_at_us is None:
            self._close_at_us = now_us + self._span_us
        elif now_us >= self._close_at_us:
            self._close(now_us)
        while self._older and now_us >= self._older[0].closed_us + self._span_us:
            segment = self._older.pop(0)
            self._older_count -= len(segment)
            self._eviction_queue.clear()
            self._end_merge(segment)
            self._drops.extend(filter(None, segment.parts))
        left = DROPPED_PER_CALL
        while self._drops and left:
            drop = self._drops[-1]
            for _ in range(min(left, len(drop))):
                drop.popitem()
                left -= 1
            if not drop:
                self._drops.pop()
        ends = self._older[0].closed_us + self._span_us if self._older else self._close_at_us
        self.evict_at_us = now_us if self._drops else min(self._close_at_us, ends)

    def make_room(self, now_us: int) -> None:
        """Prepares for one more young key: closes the segment if it is full, and evicts the key that was not used for
        longest if the table is."""
        young = self.young
        young_count = self._young_count if young is None else len(young)
        count = young_count + self._older_count
        if young_count >= self._segment_size and count * 2 >= self._max_keys:
            self._close(now_us)
        elif young is not None and young_count >= LARGEST_PART:
            # Closed rather than divided, which would take as long as rebuilding: its keys move as they are used.
            self._close(now_us, PARTS)
        if self._merging is not None:
            self._merge_some(*self._merging)
        while count >= self._max_keys:
            self._evict_oldest(now_us)
            count -= 1
        self._young_count += 1

    def young_state(self, key: str, now_us: int, create: bool) -> Any:
        """The packed state of a key, made young; a new one if there is none and `create` is set; `None` if
        another table may have the key, or the key has yet to be checked."""
        if now_us >= self.evict_at_us:
            self.evict_expired(now_us)
        young = self.young
        packed = (self.parts[hash(key) & PART_MASK] if young is None else young).get(key)
        if packed is None:
            packed = self._pop_older(key) if self._older else None
            if packed is not None:
                self.make_room(now_us)
                self.store(key, packed)
            elif create and self.alone:
                self.make_room(now_us)
                packed = (0, now_us)
        return packed

    def segments(self) -> list[Part]:
        """All segments, part by part, also those that are yet to be dropped."""
        return [*self.parts, *(part for segment in self._older for part in segment.parts), *self._drops]

    def _pop_older(self, key: str) -> Any:
        place = hash(key) & PART_MASK
        for segment in self._older:
            parts = segment.parts
            packed = parts[0 if len(parts) == 1 else place].pop(key, None)
            if packed is not None:
                self._older_count -= 1
                return packed
        return None

    def _close(self, now_us: int, parts: int | None = None) -> None:
        """Makes the young segment the last of the older ones, and begins one of so many parts, or as many as before."""
        self._close_at_us = now_us + self._span_us
        self.evict_at_us = min(self.evict_at_us, self._close_at_us)
        if any(self.parts):
            self._older.append(_Segment(self.parts, now_us))
            parts = parts or len(self.parts)
        if parts is not None:
            self.parts = ({},) if parts == 1 else tuple(_untracked_dict() for _ in range(parts))
            self.young = self.parts[0] if parts == 1 else None
        if len(self._older) > MAX_SEGMENTS and self._merging is None:
            self._begin_merge()
        # Recounted: a signal handler may have raised after a key was removed and before it was counted.
        self._young_count, self._older_count = 0, sum(map(len, self._older))

    def _begin_merge(self) -> None:
        """Chooses the two adjacent segments that have the fewest keys. Their keys are merged a few with every call."""
        older = self._older
        at = min(range(len(older) - 1), key=lambda index: len(older[index]) + len(older[index + 1]))
        first, second = older[at], older[at + 1]
        # Into the one that has more parts: a single part would become too large.
        source, target = (first, second) if len(second.parts) > len(first.parts) else (second, first)
        target.closed_us = second.closed_us
        self._merging = source, target

    def _merge_some(self, source: _Segment, target: _Segment) -> None:
        left = MERGED_PER_CALL
        for part in filter(None, source.parts):
            keys = list(islice(part, left))
            for key in keys:
                packed = part[key]
                target.part(key)[key] = packed if len(target.parts) == 1 else self.compact(packed)
                del part[key]  # last: a signal handler may raise anywhere, and no key may be lost
            left -= len(keys)
            if not left:
                return
        self._older.remove(source)
        self._end_merge(source)

    def _end_merge(self, segment: _Segment) -> None:
        if self._merging is not None and segment in self._merging:
            self._merging = None

    def _evict_oldest(self, now_us: int) -> None:
        while self._older or any(self.parts):
            if not self._older:
                self._close(now_us)
            oldest = self._older[0]
            while self._eviction_queue:
                key = self._eviction_queue.pop()
                if oldest.part(key).pop(key, None) is not None:
                    self._older_count -= 1
                    return
            # In batches: each search for the first key skips all that were removed before it.
            self._eviction_queue = self._first_keys(oldest)
            if not self._eviction_queue:
                self._end_merge(oldest)
                del self._older[0]

    def _first_keys(self, segment: _Segment) -> list[str]:
        """The first keys of one part, last to first. The parts take turns, so that the order is about that of use."""
        count = len(segment.parts)
        for _ in range(count):
            self._eviction_part = (self._eviction_part + 1) % count
            if part := segment.parts[self._eviction_part]:
                return list(islice(part, max(EVICTION_BATCH // count, 16)))[::-1]
        return []


class MixedKeyTable(KeyTable):
    """The states of many specs, kept for the longest life of any of them."""

    __slots__ = ()

    def __init__(self, spec: Spec, max_keys: int) -> None:
        super().__init__(spec, max_keys)
        self.spec = None

    def add_spec(self, spec: Spec) -> None:
        """Keeps states for the life of a further spec."""
        self._span_us = max(self._span_us, spec.life_us)


def _untracked_dict() -> Part:
    """A `dict` that the garbage collector does not walk. It can be part of no cycle: it holds strings, integers, bytes
    and tuples of these. Until Python 3.13 a `dict` is tracked only once it holds a container."""
    part: Part = {}
    if gc.is_tracked(part):
        with suppress(ImportError):  # some builds lack `ctypes`; imported here, as only large tables need it
            from ctypes import py_object, pythonapi

            pythonapi.PyObject_GC_UnTrack(py_object(part))
    return part
