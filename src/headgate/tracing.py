"""Traces: all that was done for one request, in whichever process and however much later.

What belongs to which trace travels as a W3C `traceparent`, a text of 55 characters that fits into a header, a column
or a memo. Nothing here knows who collects traces; without a `Tracer` nothing is traced and nothing is paid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, Protocol

LONGEST = 55
"""Characters of a traceparent."""
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?=$|-)")


class Kind(StrEnum):
    """Which side of a conversation a span is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Origin(NamedTuple):
    """Where work was asked for; it travels with the work to wherever that is done."""

    traceparent: str
    at_ns: int
    """When, in nanoseconds since the epoch, by this host's clock."""


Attributes = Mapping[str, str | int | float | bool]
"""Ids, names of configs, counts and outcomes. Never amounts, names of people, accounts, tokens or texts of messages."""


class Span(Protocol):
    """Something that is being done."""

    @property
    def traceparent(self) -> str:
        """What is done for it, here or elsewhere, is part of this."""
        ...

    def end(self, attributes: Attributes | None = None, *, failed: str | None = None, name: str | None = None) -> None:
        """It is done, well or not; `failed` names the kind of failure, `name` what it turned out to be. Only the first
        end counts."""
        ...


class Tracer(Protocol):
    """Keeps spans. Every method is quick, never waits for a collector and never raises."""

    def origin(self) -> Origin | None:
        """Where the caller stands: inside a span, or (None) outside of all."""
        ...

    def begin(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        parent: str | None,
        kind: Kind = Kind.INTERNAL,
        at_ns: int | None = None,
        own: str | None = None,
    ) -> Span:
        """Something begins, now or at a time that was: as part of `parent`, or as the root of a trace of its own.
        `own` is the traceparent it shall have, if others had to know it before (`derived`)."""
        ...

    def inside(self, span: Span) -> AbstractContextManager[None]:
        """What runs inside is part of the span."""
        ...


def accepted(header: str) -> str | None:
    """The traceparent in a header somebody sent, or None if it is not one."""
    found = _FORM.match(header)
    if found is None or (header.startswith("00") and len(header) != LONGEST):
        return None
    # Later versions may say more, which we would not understand.
    return "00" + found.group()[2:]


def derived(parent: str, seed: str) -> str:
    """A traceparent for the part of `parent` that `seed` names: the same one wherever it is asked for."""
    version, trace, span, flags = parent.split("-")
    own = blake2b(f"{span}-{seed}".encode(), digest_size=8).hexdigest()
    return f"{version}-{trace}-{own}-{flags}"
