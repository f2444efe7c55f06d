"""Errors that name the field as the user typed it: a JSON member on HTTP, an option on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headgate.errors import ConfigurationError, InvalidInput


@contextmanager
def typed_as(**names: str) -> Iterator[None]:
    """Inside, an `InvalidInput` for one of `names` (as Python calls it) is raised under what the user typed."""
    try:
        yield
    except InvalidInput as error:
        field, _, rest = error.field.partition(".")
        if field not in names:
            raise
        typed = names[field] + (f".{rest}" if rest else "")
        kind = ConfigurationError if isinstance(error, ConfigurationError) else InvalidInput
        raise kind(typed, error.problem) from None
