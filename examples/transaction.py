"""An order and the work for it in one transaction: both are there, or neither is.

Run it:  python examples/transaction.py

    queued: ['order-1']
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from paceline import BlockingDispatchQueue


def place_order(session: Session, queue: BlockingDispatchQueue, number: str, total: int) -> None:
    session.execute(sa.text("INSERT INTO orders VALUES (:number, :total)"), {"number": number, "total": total})
    queue.enqueue("INVOICE", number, context={"total": total}, connection=session)
    if total < 0:
        raise ValueError("an order can't cost less than nothing")


def main(url: str) -> None:
    engine = sa.create_engine(url)
    queue = BlockingDispatchQueue(url)
    queue.configure("INVOICE")
    with Session(engine) as session, session.begin():
        session.execute(sa.text("CREATE TABLE orders (number TEXT PRIMARY KEY, total INTEGER)"))

    with Session(engine) as session, session.begin():
        place_order(session, queue, "order-1", 12)
    with suppress(ValueError), Session(engine) as session, session.begin():
        place_order(session, queue, "order-2", -1)

    print("queued:", [item.item_id for item in queue.list("INVOICE")])
    queue.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(f"sqlite:///{Path(folder) / 'shop.db'}")
