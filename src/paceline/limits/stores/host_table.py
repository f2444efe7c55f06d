"""A table in memory that all processes of one user on a host share, from a name's digest to a tuple of integers.

It is a file of 64-bit words that every process maps:

    header | journal | buckets | ring of records

A record is `size, next, digest, digest, expires, count and used, values…`. A bucket holds the position of the first
record with its digests; `next` leads to the others. Records are added at the head of the ring. To make room at its
head, records at its tail are dropped if they have expired, and otherwise added again at the head; if too many have not
expired, those that were not used lately are evicted. So the file's size never changes.

One process at a time reads or changes it: it holds the file's lock (`fcntl.lockf`), which the kernel releases however
the process ends, and which a forked child does not inherit. Words that records are reached by are changed only after
the old words have been written to the journal, and the journal is cleared when the change is complete. A process that
finds a journal undoes an incomplete change: its author was killed, or interrupted by a signal handler that raised.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from hashlib import blake2b
from time import monotonic, time_ns
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

from paceline.errors import StoreError, StoreRefused, StoreUnavailable
from paceline.limits.locks import SpinLock

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

DEFAULT_MEGABYTES = 16
MEGABYTE = 1 << 20
MAGIC = b"PACELIN1"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHECK_SECONDS = 1.0
_TRY_LOCK = LOCK_EX | LOCK_NB
_MAX_DIGESTS = 10_000

# Header: positions of words. Head and tail count words since the beginning and never wrap.
_HEAD, _TAIL, _JOURNALED, _LONGEST, _HEADER_WORDS = 1, 2, 3, 4, 16
# Record: positions of words in it. The size of a dropped one is negative.
_NEXT, _DIGEST, _EXPIRES, _COUNT, _VALUES = 1, 2, 4, 5, 6
_MAX_IN_PLACE = 64
"""Values of a record that is changed in place. The journal would have to hold all of a longer one."""
_PACKED = [struct.Struct(f"={count}q") for count in range(_MAX_IN_PLACE + 3)]
_SHORTEST_WORDS = 12
"""Words of the shortest record. They are read at once."""
_SHORTEST = _PACKED[_SHORTEST_WORDS]
_KEEP_FACTOR = 8
"""Words of records that are moved, for each word of room that is made. Nothing is evicted while less than about 90 % of
the ring has not expired."""


class Busy:
    """Another process holds the lock; nothing was done."""


BUSY: Final = Busy()


class Change(NamedTuple):
    """A record to write; without values, to delete."""

    digest: tuple[int, int]
    values: Sequence[int] | None
    expires_us: int


class HostTable:
    """The table in the file at `path`, created when first used, with so many megabytes; `None`: 16, or half, a quarter,
    … of it if there is no room for more. A table that exists keeps its size. Threads share it."""

    def __init__(self, path: str, megabytes: int | None) -> None:
        self.path = path
        self._megabytes = megabytes
        self._lock = SpinLock()
        self._file: int | None = None
        self._map: mmap.mmap
        self._words: memoryview[int]
        self.is_loaded = False
        self._check_at = 0.0
        self._digests: dict[tuple[str, str], tuple[int, int]] = {}

    def try_run(self, work: Callable[[HostTable, int, Unpack[Ts]], R], *args: *Ts) -> R | Busy:
        """Returns `work(self, now_us, ...)`, run while holding the lock; `BUSY` if another process holds it.

        Raises:
            StoreUnavailable: there is no room for the file, or it can't be opened.
            StoreRefused: the file belongs to another user.
        """
        self._lock.acquire()
        try:
            if monotonic() >= self._check_at:
                self._check_file()
            file = self._file if self._file is not None else self._open()
            try:
                lockf(file, _TRY_LOCK)
                if not self.is_loaded:
                    self._load(file)
                if self._words[_JOURNALED]:
                    self._roll_back()
                return work(self, time_ns() // 1000, *args)
            except (BlockingIOError, PermissionError):
                return BUSY
            except OSError as error:
                raise StoreUnavailable(f"{self.path} can't be used: {error}") from error
            finally:
                # In any case: a signal handler may have raised between the call and its result.
                lockf(file, LOCK_UN)
        finally:
            self._lock.release(None)

    def close(self) -> None:
        self._lock.run(self._close)

    def digest(self, key: str, plan: str) -> tuple[int, int]:
        """What stands for a name of two parts in the table."""
        digest = self._digests.get((key, plan))
        if digest is None:
            text = f"{len(key)}:{key}{plan}".encode("utf-8", "surrogatepass")
            digest = struct.unpack("=2q", blake2b(text, digest_size=16).digest())
            if len(self._digests) >= _MAX_DIGESTS:
                self._digests.clear()
            self._digests[key, plan] = digest
        return digest

    # Below, the lock is held.

    def find(self, digest: tuple[int, int]) -> tuple[int, tuple[int, ...]]:
        """The position of a record, and its values; 0 and nothing if there is none."""
        first, second = digest
        at = self._words[self._buckets + first % self._bucket_count]
        while at:
            record = _SHORTEST.unpack_from(self._map, at * 8)
            if record[_DIGEST] == first and record[_DIGEST + 1] == second:
                end = _VALUES + (record[_COUNT] >> 1)
                if end <= _SHORTEST_WORDS:
                    return at, record[_VALUES:end]
                return at, tuple(self._words[at + _VALUES : at + end].tolist())
            at = record[_NEXT]
        return 0, ()

    def touch(self, at: int) -> None:
        """Marks the record at a position as used, if there is one."""
        if at:
            self._words[at + _COUNT] |= 1

    def replace(self, at: int, values: Sequence[int], expires_us: int) -> bool:
        """Replaces the values of the record at a position; false if it has no room for them."""
        if len(values) > _MAX_IN_PLACE or len(values) + _VALUES > self._words[at]:
            return False
        self._change(at + _EXPIRES, expires_us, len(values) << 1 | 1, *values)
        self._words[_JOURNALED] = 0
        return True

    def write(self, changes: Sequence[Change], now_us: int) -> None:
        """Makes all the changes, or if this process dies, none.

        Raises:
            StoreError: a record, or all of them together, are too large for this table.
        """
        words = self._words
        sizes = [
            _size(values)
            for digest, values, _ in changes
            if values is not None and not self._fits(self.find(digest)[0], values)
        ]
        if sizes:
            # For all of them: making room may evict those that have a place now.
            sizes = [_size(values) for _, values, _ in changes if values is not None]
            self._make_room(sum(sizes), max(sizes), now_us)
        for digest, values, expires_us in changes:
            at, _ = self.find(digest)
            if values is not None and self._fits(at, values):
                self._change(at + _EXPIRES, expires_us, len(values) << 1 | 1, *values)
                continue
            if at:
                self._change(self._pointer_to(at), words[at + _NEXT])
                self._change(at, -words[at])
            if values is not None:
                bucket = self._buckets + digest[0] % self._bucket_count
                size = _size(values)
                record = array("q", (size, words[bucket], *digest, expires_us, len(values) << 1 | 1, *values))
                self._add(record, size, bucket)
        words[_JOURNALED] = 0

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The values of all records."""
        for bucket in range(self._buckets, self._buckets + self._bucket_count):
            at = self._words[bucket]
            while at:
                yield self.find((self._words[at + _DIGEST], self._words[at + _DIGEST + 1]))[1]
                at = self._words[at + _NEXT]

    def _fits(self, at: int, values: Sequence[int]) -> bool:
        return at > 0 and len(values) <= _MAX_IN_PLACE and len(values) + _VALUES <= self._words[at]

    def _change(self, at: int, *values: int) -> None:
        """Changes the words at a position, after the old ones were added to the journal."""
        words, memory, count = self._words, self._map, len(values)
        end = self._journal + words[_JOURNALED] + count
        if end + 2 > self._buckets:
            raise StoreError(f"{self.path} is too small for a call with so many limits; give it more megabytes")
        memory[(end - count) * 8 : end * 8] = memory[at * 8 : (at + count) * 8]
        words[end] = at
        words[end + 1] = count
        words[_JOURNALED] = end + 2 - self._journal
        memory[at * 8 : (at + count) * 8] = _PACKED[count].pack(*values)

    def _roll_back(self) -> None:
        words = self._words
        while words[_JOURNALED]:
            end = self._journal + words[_JOURNALED] - 2
            at, count = words[end], words[end + 1]
            words[at : at + count] = words[end - count : end]
            words[_JOURNALED] = end - count - self._journal

    def _add(self, record: Any, size: int, pointer: int) -> None:
        """Adds a record at the head, where nothing refers to yet, and then sets the word that points to it."""
        words = self._words
        head = words[_HEAD]
        at = head % self._capacity
        if at + size > self._capacity:
            words[self._ring + at] = at - self._capacity
            head += self._capacity - at
            at = 0
        at += self._ring
        words[at : at + len(record)] = record
        self._change(pointer, at)
        self._change(_HEAD, head + size)

    def _pointer_to(self, at: int) -> int:
        """The position of the word that points to a record."""
        pointer = self._buckets + self._words[at + _DIGEST] % self._bucket_count
        while self._words[pointer] != at:
            pointer = self._words[pointer] + _NEXT
        return pointer

    def _make_room(self, needed: int, longest: int, now_us: int) -> None:
        """Frees `needed` words at the head, and as many as it takes to move any record there, past the ring's end.

        A part of the ring is kept free beyond that, so that records that have not expired are moved a few per call,
        however many of them follow each other. Only if that part is used up, they are evicted.
        """
        words = self._words
        if longest > self._capacity // 8 or needed > self._capacity // 4:
            raise StoreError(f"{self.path} is too small for a limit of {longest} words; give it more megabytes")
        words[_LONGEST] = longest = max(longest, words[_LONGEST])
        least = needed + 3 * longest
        enough, budget = least + self._capacity // 16, _KEEP_FACTOR * (needed + longest)
        while (free := self._capacity - words[_HEAD] + words[_TAIL]) < (enough if budget > 0 else least):
            at = self._ring + words[_TAIL] % self._capacity
            size = words[at]
            if size > 0:
                pointer, used = self._pointer_to(at), words[at + _COUNT] & 1
                if words[at + _EXPIRES] > now_us and budget > 0 and (free >= least or (used and free >= 2 * size)):
                    budget -= size
                    self._add(words[at : at + size], size, pointer)
                    words[words[pointer] + _COUNT] &= ~1
                else:
                    self._change(pointer, words[at + _NEXT])
            self._change(_TAIL, words[_TAIL] + abs(size))
            words[_JOURNALED] = 0

    # Below, the threads' lock is held.

    def _check_file(self) -> None:
        """Lets go of a file that was deleted: processes that start now have another."""
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            self._close()
        self._check_at = monotonic() + _CHECK_SECONDS

    def _open(self) -> int:
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} can't be opened: {error}") from error
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            os.close(file)
            raise StoreRefused("store", f"{self.path} belongs to user {status.st_uid}; use another name")
        if status.st_mode & 0o077:
            os.fchmod(file, 0o600)
        self._file = file
        return file

    def _load(self, file: int) -> None:
        if os.pread(file, len(MAGIC), 0) != MAGIC:
            self._create(file)
        size = os.fstat(file).st_size // MEGABYTE * MEGABYTE
        self._map = mmap.mmap(file, size)
        self._words = memoryview(self._map).cast("q")
        count = size // 8
        self._journal, self._bucket_count = _HEADER_WORDS, count // 16
        self._buckets = self._journal + count // 64
        self._ring = self._buckets + self._bucket_count
        self._capacity = (count - self._ring) // 4 * 4
        self.is_loaded = True

    def _create(self, file: int) -> None:
        """Writes the zeros of an empty table, and then its mark. A file with a hole would end a process by SIGBUS when
        the file system is full."""
        megabytes = DEFAULT_MEGABYTES if self._megabytes is None else self._megabytes
        while True:
            os.ftruncate(file, 0)
            try:
                for number in range(megabytes):
                    _write_all(file, bytes(MEGABYTE), number * MEGABYTE)
                _write_all(file, MAGIC, 0)
                return
            except OSError as error:
                os.ftruncate(file, 0)
                if error.errno not in _NO_ROOM or self._megabytes is not None or megabytes == 1:
                    raise StoreUnavailable(f"no room for {megabytes} MB in {self.path}: {error}") from error
            megabytes //= 2

    def _close(self) -> None:
        if self.is_loaded:
            self.is_loaded = False
            self._words.release()
            self._map.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _OpenTables:
    """Tables by path, one for all stores of a process: closing any descriptor of a file releases the file's locks."""

    def __init__(self) -> None:
        self._lock = SpinLock()
        self._tables: dict[str, tuple[HostTable, int]] = {}

    def open(self, path: str, megabytes: int | None) -> HostTable:
        return self._lock.run(self._open, path, megabytes)

    def close(self, table: HostTable) -> None:
        self._lock.run(self._close, table)

    def _open(self, path: str, megabytes: int | None) -> HostTable:
        table, uses = self._tables.get(path) or (HostTable(path, megabytes), 0)
        self._tables[path] = table, uses + 1
        return table

    def _close(self, table: HostTable) -> None:
        _, uses = self._tables.pop(table.path)
        if uses > 1:
            self._tables[table.path] = table, uses - 1
        else:
            table.close()


open_tables: Final = _OpenTables()


def _size(values: Sequence[int]) -> int:
    """The words of a record; short ones have room to grow."""
    count = len(values)
    slack = count // 4 if count <= _MAX_IN_PLACE else 0
    return max(-(-(_VALUES + count + slack) // 4) * 4, _SHORTEST_WORDS)


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
