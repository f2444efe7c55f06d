"""Registers invoices with paceline: `PACELINE_DISPATCH_DOMAINS=examples.invoices.domain:domain paceline worker`."""

from __future__ import annotations

import os
from pathlib import Path

from examples.invoices.invoices import Outbox

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.registry import Domain

domain = Domain(
    DispatchConfig(item_type="INVOICE", dispatch_interval_secs=1, jitter_window_ms=0),
    execute=Outbox(Path(os.environ.get("INVOICES_FOLDER", "invoices"))).send,
)
