"""Texts that begin with others, in SQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def begins_with(column: sa.Column[Any], prefix: str) -> sa.ColumnElement[bool]:
    """Whether a text begins so. The second condition lets an index begin there.

    LIKE would not tell capital letters from small ones on SQLite.
    """
    return sa.and_(sa.func.substr(column, 1, len(prefix)) == prefix, column >= prefix)
