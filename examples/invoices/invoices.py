"""Invoices: what they are, how one is prepared, how one is sent. Nothing here depends on dispatch."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.dispatch.lifecycle import ScheduleLifecycle, ScheduleResult


@dataclass(frozen=True)
class Invoice:
    """The data of an execution, decided when the invoice was prepared."""

    customer: str
    total: str
    currency: str


async def prepare(lifecycle: ScheduleLifecycle, number: str, invoice: Invoice, due: datetime) -> ScheduleResult:
    """The init side: checks the invoice and queues it for its time. Idempotent."""
    if not invoice.customer:
        raise ValueError("an invoice needs a customer")
    return await lifecycle.schedule(number, asdict(invoice), due)


class Outbox:
    """The exec side: writes each invoice to a folder, once; its number is the file's name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, number: str, context: Any) -> None:
        invoice = Invoice(**context)
        await asyncio.to_thread(self._write, number, f"{invoice.customer}: {invoice.total} {invoice.currency}\n")

    def _write(self, number: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with (self._folder / f"{number}.txt").open("x") as file:
                file.write(text)
        except FileExistsError:
            pass  # an earlier run, cut short by a crash, had sent it
