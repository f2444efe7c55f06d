"""Items with an attempt whose effect nobody knows: marked in the transaction that ends the attempt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from paceline.dispatch.model import BatchSummary, Change, Claim
from paceline.dispatch.stores.following import Settle
from paceline.dispatch.stores.rows import chunks, of_items
from paceline.dispatch.stores.tables import IN_FLIGHT, queue
from paceline.sql.schema import Instant
from paceline.sql.schema import now as database_clock


def marking(write: Settle) -> Settle:
    """`write`, and marks the items whose changes leave an attempt in doubt, unless an earlier one is."""

    def settle(
        connection: sa.Connection, changes: Sequence[Change], summaries: Sequence[BatchSummary], now: datetime | None
    ) -> list[bool]:
        done = write(connection, changes, summaries, now)
        claims = [change.claim for change, written in zip(changes, done, strict=True) if written and change.in_doubt]
        if not claims:
            return done
        began = sa.func.coalesce(queue.c.begun_at, sa.literal(now or database_clock(connection), Instant))
        for item_type in {claim.item_type for claim in claims}:
            for some in chunks([claim.item_id for claim in claims if claim.item_type == item_type]):
                mark = sa.update(queue).where(of_items(item_type, some), queue.c.unknown_since.is_(None))
                connection.execute(mark.values(unknown_since=began))
        return done

    return settle


def decide(connection: sa.Connection, claim: Claim) -> bool:
    """Ends the doubt about the item of a claim; False if the claim is lost."""
    this = of_items(claim.item_type, [claim.item_id]), queue.c.claim_epoch == claim.epoch, sa.text(IN_FLIGHT)
    return connection.execute(sa.update(queue).where(*this).values(unknown_since=None)).rowcount == 1
