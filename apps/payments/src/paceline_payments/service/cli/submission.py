"""A feed on the command line: received with a bar, accepted with a bar, its rejects written to a file."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from paceline.errors import InvalidInput
from paceline.server.cli.audit import user
from paceline.server.cli.meter import Meter, size_of
from paceline.server.cli.terminal import print_status
from paceline_payments.service.shapes.feeds import RejectedRecord
from paceline_payments.service.shapes.payments import FeedReport, RejectedLine
from paceline_payments.submission import submitted

if TYPE_CHECKING:
    from paceline_payments.feed import FeedFormat
    from paceline_payments.feeds.accepting import Feeds
    from paceline_payments.feeds.model import Control, Feed
    from paceline_payments.service.wiring.payments import Payments

BLOCK = 256 * 1024
SHOWN = 20


class Submission(NamedTuple):
    """What is submitted, and how."""

    kind: FeedFormat
    config: str | None
    control: Control
    name: str | None
    rejected: Path | None
    """Where rejects are written; None: they are only shown."""


async def submit_feed(payments: Payments, file: IO[bytes], submission: Submission) -> FeedReport:
    """Receives the feed and accepts it; idempotent, so an interrupted run may be repeated."""
    from paceline_payments.feeds.model import FeedState

    started = time.monotonic()
    with Meter("received", size_of(file)) as meter, submitted(f"cli:{user()}"):
        feed_id = await payments.receiver.receive(
            file_blocks(file, meter),
            submission.kind,
            control=submission.control,
            name=submission.name,
            config_name=submission.config,
        )
    before = await payments.feeds.show(feed_id)
    if before.state is FeedState.HELD:
        print_status(f"feed {feed_id} is held until another person releases it: paceline payments release {feed_id}")
    if before.chunks_done and before.state is FeedState.ACCEPTING:
        print_status(f"going on after chunk {before.chunks_done} of {before.chunks}")
    feed = await _accept(payments.feeds, before)
    there = before.state not in (FeedState.HELD, FeedState.ACCEPTING)
    if feed.state is FeedState.CANCELLED:
        print_status(
            f"feed {feed.feed_id} was cancelled: nothing more of it is accepted, and payments that had not begun stay"
            " CANCELLED; to make them after all, submit them in another file, with new ids"
        )
    elif there:
        print_status(f"this feed was submitted before: {feed.feed_id} is {feed.state}")
    return await _report(payments.feeds, feed, submission.rejected, started, there=there)


async def release_feed(payments: Payments, feed_id: str, rejected: Path | None) -> FeedReport:
    """Releases a feed that was held, and accepts it; idempotent."""
    started = time.monotonic()
    feed = await _accept(payments.feeds, await payments.feeds.release(feed_id, f"cli:{user()}"))
    return await _report(payments.feeds, feed, rejected, started)


async def _report(
    feeds: Feeds, feed: Feed, rejected: Path | None, started: float, *, there: bool = False
) -> FeedReport:
    """The result of a feed, with its rejects written to a file. `there`: it was submitted before."""
    seconds = time.monotonic() - started
    shown, written = await _write_rejects(feeds, feed, rejected)
    return FeedReport(
        feed_id=feed.feed_id,
        state=feed.state,
        accepted=0 if there else feed.accepted,
        duplicates=feed.duplicates + (feed.accepted if there else 0),
        rejected=shown,
        rejected_count=feed.rejected,
        rejected_file=None if written is None else str(written),
        lines=feed.records,
        seconds=round(seconds, 3),
    )


async def _accept(feeds: Feeds, feed: Feed) -> Feed:
    done = feed.chunks_done
    try:
        with Meter("accepted", feed.chunks, feed.chunks_done, feed.chunks_done) as meter:
            async for done in feeds.progress(feed.feed_id):
                meter.move(round(feed.records * done / feed.chunks), done)
    except BaseException:
        print_status(f"{done} of {feed.chunks} chunks are accepted; the same command goes on from there")
        raise
    return await feeds.show(feed.feed_id)


async def _write_rejects(feeds: Feeds, feed: Feed, path: Path | None) -> tuple[list[RejectedLine], Path | None]:
    """The first rejects, to be shown, and the file that has all of them."""
    shown: list[RejectedLine] = []
    if not feed.rejected:
        if path is not None:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return shown, None
    file: IO[bytes] | None = None
    if path is not None:
        try:
            file = await asyncio.to_thread(open_for_owner, path)
        except OSError as error:
            print_status(f"{path} can't be written ({error.strerror}): see the feed's rejects")
    after = 0
    try:
        while page := await feeds.rejects(feed.feed_id, after):
            after = page[-1].line
            shown += [RejectedLine(line=one.line, reason=one.reason) for one in page[: SHOWN - len(shown)]]
            if file is not None:
                file.write(b"".join(RejectedRecord.of(reject).dump_json() + b"\n" for reject in page))
    finally:
        if file is not None:
            file.close()
    return shown, path if file is not None else None


def open_for_owner(path: Path) -> IO[bytes]:
    """A new file that nobody else may read: records have names and accounts."""
    file = open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
    os.fchmod(file.fileno(), 0o600)
    return file


async def file_blocks(file: IO[bytes], meter: Meter) -> AsyncIterator[bytes]:
    """A file, block by block."""
    position = 0
    while block := await asyncio.to_thread(file.read, BLOCK):
        position += len(block)
        meter.move(0, position)
        yield block


def checked_directory(path: Path) -> Path:
    """The path of a file that can be written.

    Raises:
        InvalidInput: There is no such folder.
    """
    if not path.parent.is_dir():
        raise InvalidInput("--rejected", f"can't be written: there is no folder {path.parent}")
    return path
