"""When opening a database may migrate it. Apart from `migrate`, so that the command line starts without the drivers."""

from __future__ import annotations

from enum import Enum


class Migrations(Enum):
    """When opening a database may migrate it."""

    ALWAYS = "always"
    """A program that uses headgate as a library, or a service that was told to."""
    EMBEDDED = "embedded"
    """If it is this program's own, SQLite, or still empty. Others are shared with programs of other versions: an
    operator migrates them."""
    NEVER = "never"
    """A command that only reads."""


class _Permission:
    migrations = Migrations.ALWAYS


def permit_migrations(when: Migrations) -> None:
    """Says when this process may migrate the databases it opens from now on."""
    _Permission.migrations = when


def permitted_migrations() -> Migrations:
    """When this process may migrate a database."""
    return _Permission.migrations
