"""Receives a feed: reads it once while it arrives, in constant memory, and checks it before anything is accepted."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from hashlib import sha256

from paceline.errors import PacelineError
from paceline_payments.feed import CHUNK, FeedFormat, line_chunks
from paceline_payments.feeds.model import Control, Figures, check_control
from paceline_payments.feeds.pain001 import Pain001Parser
from paceline_payments.feeds.ports import FeedStore
from paceline_payments.feeds.staging import StagedChunk, stage, stage_lines
from paceline_payments.submission import current_submission

NO_CONTROL = Control()


class FeedReceiver:
    """Stages feeds. One that is truncated, unreadable or contradicts its control figures leaves nothing behind. With
    `hold`, each waits until a second person releases it."""

    def __init__(self, store: FeedStore, *, hold: bool = False) -> None:
        self._store = store
        self._hold = hold

    async def receive(
        self,
        blocks: AsyncIterator[bytes],
        kind: FeedFormat,
        *,
        control: Control = NO_CONTROL,
        name: str | None = None,
        config_name: str | None = None,
    ) -> str:
        """The id of the feed, which is complete and waits to be released or accepted. Idempotent: the same
        bytes are the same feed.

        Raises:
            InvalidInput: It is no feed of this kind, or its control figures are wrong. Nothing was kept.
        """
        feed_id = f"feed-{secrets.token_hex(8)}"
        await self._store.open(feed_id, kind.value, name, config_name, current_submission().by)
        try:
            return await self._stage(feed_id, blocks, kind, control, name, config_name)
        except PacelineError as error:
            await self._store.drop(feed_id, str(error)[:1000])
            raise
        except BaseException:
            # The client disconnected, or this process ends: the staged part is useless.
            await asyncio.shield(self._store.drop(feed_id, "it broke off"))
            raise

    async def _stage(
        self,
        feed_id: str,
        blocks: AsyncIterator[bytes],
        kind: FeedFormat,
        control: Control,
        name: str | None,
        config_name: str | None,
    ) -> str:
        figures, digest = Figures(), sha256(f"{kind}\n{config_name or ''}\n".encode())
        hashed, document = _hashed(blocks, digest), dict[str, str]()
        if kind is FeedFormat.PAIN001:
            parser = Pain001Parser()
            chunks = _transactions(hashed, parser, figures)
        else:
            parser = None
            chunks = _lines(hashed, kind, figures, document)
        writing: asyncio.Task[None] | None = None
        number = 0
        try:
            async for payload, rejects in chunks:
                # While a chunk is written the next one is parsed.
                if writing is not None:
                    await writing
                number += 1
                writing = asyncio.create_task(self._store.stage(feed_id, number, payload, rejects))
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                await asyncio.gather(writing, return_exceptions=True)
        check_control(figures, control)
        if parser is not None:
            check_control(figures, parser.control)
            name, document = name or parser.message, parser.document
        return await self._store.complete(feed_id, digest.hexdigest(), figures, name, document, hold=self._hold)


async def _hashed(blocks: AsyncIterator[bytes], digest: object) -> AsyncIterator[bytes]:
    async for block in blocks:
        digest.update(block)  # type: ignore[attr-defined]
        yield block


async def _lines(
    blocks: AsyncIterator[bytes], kind: FeedFormat, figures: Figures, document: dict[str, str]
) -> AsyncIterator[StagedChunk]:
    async for lines, columns in line_chunks(blocks, kind, (0, 0), CHUNK):
        if kind is FeedFormat.CSV:
            document["columns"] = ",".join(columns)
        # On a thread, so as not to block the event loop.
        yield await asyncio.to_thread(stage_lines, lines, columns, kind, figures)


async def _transactions(
    blocks: AsyncIterator[bytes], parser: Pain001Parser, figures: Figures
) -> AsyncIterator[StagedChunk]:
    async for block in blocks:
        await asyncio.to_thread(parser.feed, block)
        if parser.waiting >= CHUNK:
            yield await asyncio.to_thread(_staged, parser, figures)
    parser.finish()
    if parser.waiting:
        yield await asyncio.to_thread(_staged, parser, figures)


def _staged(parser: Pain001Parser, figures: Figures) -> StagedChunk:
    payments, rejects = parser.take()
    parser.add_to(figures)
    return stage(payments, rejects, figures)
