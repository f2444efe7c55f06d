"""The tables of every feature, and of every application."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import sqlalchemy as sa

import paceline
import paceline_payments
import paceline_sms
from paceline.sql.schema import metadata

TABLES_OF = {
    "schema": paceline,
    "payments": paceline_payments,
    "sms": paceline_sms,
}
"""By the name of the steps that make them: the package that has the tables."""


def every_table() -> sa.MetaData:
    """The metadata, once every module of tables is imported."""
    for root in TABLES_OF.values():
        _modules(root)
    return metadata


def tables_of(name: str) -> sa.MetaData:
    """The tables that the steps of this name make."""
    theirs = sa.MetaData(naming_convention=metadata.naming_convention)
    for module in _modules(TABLES_OF[name]):
        for table in vars(module).values():
            if isinstance(table, sa.Table):
                table.to_metadata(theirs)
    return theirs


def _modules(root: ModuleType) -> list[ModuleType]:
    package = Path(str(root.__file__)).parent
    files = [*package.rglob("*tables.py"), *package.rglob("write_check.py")]
    return [
        importlib.import_module(".".join((root.__name__, *file.relative_to(package).with_suffix("").parts)))
        for file in files
    ]
