"""Alembic's entry: the connection is handed in by `paceline.sql.migrate`."""

from __future__ import annotations

from typing import Any

from alembic import context

from paceline.sql.schema import metadata

options: dict[str, Any] = {
    "target_metadata": metadata,
    "version_table": context.config.attributes["version_table"],
    "transactional_ddl": True,
}
connection = context.config.attributes.get("connection")

if connection is not None:
    context.configure(connection=connection, **options)
    context.run_migrations()
else:
    context.configure(dialect_name=context.config.attributes["dialect"], literal_binds=True, **options)
    if context.get_context().dialect.name == "oracle":
        # Numbers, as on a connection: Oracle has BOOLEAN since 23 only.
        context.get_context().dialect.supports_native_boolean = False
    with context.begin_transaction():
        context.run_migrations()
