"""Who submits: the caller whose request, command or feed brings payments. Ambient, as the trace is: it passes through
everything that stands between a route and the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

MAX_NAME = 255


class Submission(NamedTuple):
    """Who submits payments, and on which lines of a feed they are."""

    by: str | None = None
    """A token's name, a person, or a topic."""
    lines: Sequence[int] | None = None
    """In the order of the payments that are submitted."""

    def line(self, index: int) -> int | None:
        return None if self.lines is None else self.lines[index]


_current: ContextVar[Submission] = ContextVar("paceline_payments_submission", default=Submission())  # noqa: B039


def current_submission() -> Submission:
    """The submission of this task."""
    return _current.get()


@contextmanager
def submitted(by: str | None, lines: Sequence[int] | None = None) -> Iterator[None]:
    """What is submitted in the block is submitted by this caller."""
    token = _current.set(Submission(None if by is None else by[:MAX_NAME], lines))
    try:
        yield
    finally:
        _current.reset(token)
