"""When opening a database may migrate it. Apart from `migrate`, so that the command line starts without the drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Migrations(Enum):
    """When opening a database may migrate it."""

    ALWAYS = "always"
    """A program that uses paceline as a library, or a service that is configured to."""
    EMBEDDED = "embedded"
    """If it is this program's own, SQLite, or still empty. Others are shared with programs of other versions: an
    operator migrates them."""
    NEVER = "never"
    """A command that only reads."""


class _Permission:
    migrations = Migrations.ALWAYS


def permit_migrations(when: Migrations) -> None:
    """Sets when this process may migrate the databases it opens from now on."""
    _Permission.migrations = when


@contextmanager
def permitting(when: Migrations) -> Iterator[None]:
    """Sets when this process may migrate the databases it opens in the block."""
    earlier = _Permission.migrations
    _Permission.migrations = when
    try:
        yield
    finally:
        _Permission.migrations = earlier


def permitted_migrations() -> Migrations:
    """When this process may migrate a database."""
    return _Permission.migrations
