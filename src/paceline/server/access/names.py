"""The names that a caller sees and changes: all, or those that match the patterns of their token. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.errors import InvalidInput, PacelineError

MAX_LENGTH = 1000
"""Of all patterns of a token together."""
_PATTERN = re.compile(r"[^\s*]{1,128}|[^\s*]{1,127}\*")


class OutsideNames(PacelineError):
    """The caller's token is bound to other names."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names by patterns: a name, or how names begin, with `*` at the end. Without patterns, every name.

    Names(("team-a-*",)).allow("team-a-payouts")
    """

    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether they are fewer than all."""
        return bool(self.patterns)

    def allow(self, name: str) -> bool:
        """Whether this config, plan, key, downstream or periodic task is among them."""
        return not self.patterns or any(_matches(pattern, name) for pattern in self.patterns)

    def allow_type(self, item_type: str) -> bool:
        """Whether this item type is among them. Item types are written in upper case as a rule, and those of functions
        with `_`: `team-a-*` is also TEAM_A_PAYOUT."""
        return not self.patterns or any(_matches(_as_type(one), _as_type(item_type)) for one in self.patterns)

    def check(self, *names: object) -> None:
        """Raises `OutsideNames` unless all of these are among them."""
        if self.patterns and not all(isinstance(name, str) and self.allow(name) for name in names):
            raise self.refusal()

    def check_type(self, item_type: object) -> None:
        """Raises `OutsideNames` unless this item type is among them."""
        if self.patterns and not (isinstance(item_type, str) and self.allow_type(item_type)):
            raise self.refusal()

    def refusal(self, problem: str = "this is outside of them") -> OutsideNames:
        return OutsideNames(f"this token is for names like {', '.join(self.patterns)}: {problem}")


EVERY_NAME = Names()


def checked_names(patterns: Iterable[str]) -> Names:
    """Names by these patterns.

    Raises:
        InvalidInput: one is no pattern, or they are too many.
    """
    chosen = tuple(dict.fromkeys(patterns))
    for pattern in chosen:
        if not _PATTERN.fullmatch(pattern) or not pattern.isprintable():
            raise InvalidInput(
                "for", f"{pattern!r:.140} is no name, and not how names begin with * at its end: team-a-*"
            )
    if len(" ".join(chosen)) > MAX_LENGTH:
        raise InvalidInput("for", f"takes {MAX_LENGTH} characters; give names of a team the same beginning")
    return Names(chosen)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _as_type(text: str) -> str:
    return text.upper().replace("_", "-")
