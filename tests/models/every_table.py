"""The tables of every feature, and of every application."""

from __future__ import annotations

import importlib
from pathlib import Path

import sqlalchemy as sa

import paceline
import paceline_payments
import paceline_sms
from paceline.sql import write_check as _write_check  # noqa: F401
from paceline.sql.schema import metadata


def every_table() -> sa.MetaData:
    """The metadata, once every module of tables is imported."""
    for root in (paceline, paceline_payments, paceline_sms):
        package = Path(str(root.__file__)).parent
        for file in package.rglob("*tables.py"):
            importlib.import_module(".".join((root.__name__, *file.relative_to(package).with_suffix("").parts)))
    return metadata
