"""Templates: a config whose name has a `*`, such as `merchant-*`, is the policy of every config that matches it. Pure.

The first booking under `merchant-7` makes that config from the template, so a new merchant needs no set-up call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from paceline.errors import InvalidInput

WILDCARD = "*"


def is_template(name: str) -> bool:
    """Whether a config is a template: its name has a `*`."""
    return WILDCARD in name


def refuse_template(name: str, field: str = "config_name") -> str:
    """The name, if it is no template's.

    Raises:
        InvalidInput: nothing can be booked under a template itself.
    """
    if is_template(name):
        example = name.replace(WILDCARD, "7")
        raise InvalidInput(field, f"{name!r} is a template; book under a name that it matches, such as {example!r}")
    return name


def best_template(templates: Iterable[str], name: str) -> str | None:
    """The template that a config is made from: of those that match, the one that matches most literal characters."""
    matching = [template for template in templates if is_template(template) and _pattern(template).fullmatch(name)]
    return min(matching, key=lambda template: (template.count(WILDCARD) - len(template), template), default=None)


@lru_cache(maxsize=1024)
def _pattern(template: str) -> re.Pattern[str]:
    # Runs of `*` are collapsed: as a regular expression they would backtrack exponentially.
    parts = [re.escape(part) for part in re.split(r"\*+", template)]
    return re.compile(".+".join(parts), re.DOTALL)
