"""The steps that make the tables of payments."""

from __future__ import annotations

from pathlib import Path

from paceline.sql.migrate import Steps

steps = Steps(Path(__file__).with_name("versions"), oldest_runnable="0001_payments", name="payments")
