"""Prefix matches in SQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def begins_with(column: sa.Column[Any], prefix: str) -> sa.ColumnElement[bool]:
    """Whether a text has the prefix. The second condition lets an index range scan start there.

    On SQLite, LIKE would be case-insensitive.
    """
    return sa.and_(sa.func.substr(column, 1, len(prefix)) == prefix, column >= prefix)
