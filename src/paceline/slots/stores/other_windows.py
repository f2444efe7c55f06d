"""The column `other_windows` of a slot: the windows of its second and further configs, as JSON.

One row per event, however many configs it has: a row per config would multiply the cost of the largest table by their
number. Queries that count a config's slots use `charged_to`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.slots.model import SlotWindow
from paceline.slots.stores.tables import slot
from paceline.sql.schema import instant_ms, instant_text


def other_windows_text(windows: Sequence[SlotWindow]) -> str | None:
    """The column's value, such as `[["merchant-7",3,"2027-03-01 16:00:00.000000"]]`; None for a slot of one config."""
    if not windows:
        return None
    rows = [f'{name_in_text(name)}{version},"{instant_text(start)}"]' for name, version, start in windows]
    return f"[{','.join(rows)}]"


def parse_other_windows(text: str | None) -> tuple[SlotWindow, ...]:
    """The inverse of `other_windows_text`."""
    if text is None:
        return ()
    return tuple(SlotWindow(name, version, instant_ms(start)) for name, version, start in json.loads(text))


def other_names(text: str | None) -> list[str]:
    """The names of the further configs."""
    return [] if text is None else [name for name, _, _ in json.loads(text)]


def charged_to(connection: Connection, name: str, table: sa.Table = slot) -> sa.ColumnElement[bool]:
    """Whether a slot is charged to a config, as its first one or as a further one."""
    index = sa.func.strpos if connection.dialect.name == "postgresql" else sa.func.instr
    return (table.c.config_name == name) | (index(table.c.other_windows, name_in_text(name)) > 0)


def name_in_text(name: str) -> str:
    """The part of `other_windows_text` that names a config."""
    # Quotes inside a JSON text are escaped, so no name can match the beginning of another row.
    return f"[{encode_basestring(name)},"
