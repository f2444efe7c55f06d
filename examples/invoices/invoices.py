"""Invoices: what they are, how one is prepared, how one is sent."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from paceline import Tasks, current_task

tasks = Tasks(os.environ.get("PACELINE_DATABASE_URL", "sqlite:///paceline.db"))


@tasks.task(name="INVOICE", retries=4)
def send(customer: str, total: str, currency: str = "EUR") -> None:
    """Writes an invoice to a folder, once; its number, the item's id, is the file's name."""
    folder = Path(os.environ.get("INVOICES_FOLDER", "invoices"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / f"{current_task().item_id}.txt").open("x") as file:
            file.write(f"{customer}: {total} {currency}\n")
    except FileExistsError:
        pass  # an earlier run, cut short by a crash, had sent it


async def prepare(number: str, customer: str, total: str, due: datetime) -> bool:
    """Checks an invoice and queues it for its time. Idempotent: False, if it was queued before."""
    if not customer:
        raise ValueError("an invoice needs a customer")
    return not (await send.options(key=number, at=due).enqueue(customer, total)).existing
