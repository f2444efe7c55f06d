"""Where a feed stands, kept beside it, so that an interrupted submission goes on instead of starting over.

Two files stand beside `feed.csv`: `feed.csv.checkpoint` while it is being submitted, and `feed.csv.rejected.jsonl` with
the lines that were refused. Both are only ever a convenience: a feed sent twice is accepted once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from headgate.apps.payments.feed import Progress, Rejection

HEAD = 64 * 1024


@dataclass(slots=True)
class FeedPosition:
    """How far a feed is, and what came of it so far."""

    head: str
    """A digest of the feed's beginning: another feed of the same name starts anew."""
    lines: int = 0
    bytes: int = 0
    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    rejected_bytes: int = 0
    """How much of the file of refusals is true; what an interrupted run wrote beyond it is written again."""


class Checkpoint:
    """The two files beside a feed."""

    def __init__(self, feed: Path, rejected: Path | None = None) -> None:
        self._feed = feed
        self.path = feed.with_name(f"{feed.name}.checkpoint")
        self.rejected_path = rejected or feed.with_name(f"{feed.name}.rejected.jsonl")
        self._rejected: IO[bytes] | None = None
        self.position = FeedPosition(_digest(feed))

    def resume(self) -> bool:
        """Takes up where an interrupted submission left off; False if there is nothing to take up."""
        try:
            saved = FeedPosition(**json.loads(self.path.read_text("utf-8")))
            size = self._feed.stat().st_size
        except (OSError, ValueError, TypeError):
            return False
        if saved.head != self.position.head or saved.bytes > size:
            return False
        if saved.rejected_bytes and not self.rejected_path.is_file():
            return False
        self.position = saved
        return True

    def add(self, progress: Progress) -> None:
        """Notes a chunk that is done: first its refusals, then how far the feed is."""
        now = self.position
        if progress.rejected:
            self._write(progress.rejected)
        now.lines, now.bytes = progress.lines, progress.bytes
        now.accepted += progress.accepted
        now.duplicates += progress.duplicates
        now.rejected += len(progress.rejected)

    def save(self) -> None:
        """Writes how far the feed is, whole or not at all."""
        if self._rejected is not None:
            self._rejected.flush()
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.write_text(json.dumps(asdict(self.position)), "utf-8")
        fresh.replace(self.path)

    def finish(self) -> None:
        """The feed is through: only the refusals stay, if there are any."""
        self.close()
        self.path.unlink(missing_ok=True)
        if not self.position.rejected:
            self.rejected_path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._rejected is not None:
            self._rejected.close()
            self._rejected = None

    def _write(self, rejected: Iterable[Rejection]) -> None:
        if self._rejected is None:
            fresh = self.position.rejected_bytes == 0
            self._rejected = self.rejected_path.open("wb" if fresh else "r+b")
            self._rejected.truncate(self.position.rejected_bytes)
            self._rejected.seek(self.position.rejected_bytes)
        for each in rejected:
            entry = {"line": each.line, "paymentId": each.payment_id, "reason": each.reason}
            raw = json.dumps({name: value for name, value in entry.items() if value is not None}).encode() + b"\n"
            self._rejected.write(raw)
            self.position.rejected_bytes += len(raw)


def _digest(feed: Path) -> str:
    with feed.open("rb") as file:
        return hashlib.sha256(file.read(HEAD)).hexdigest()
