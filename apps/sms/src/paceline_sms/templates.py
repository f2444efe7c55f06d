"""Texts with variables: `Your code is {code}`. Two braces are one: `{{`."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from paceline.errors import ConfigurationError, InvalidInput

LONGEST_NAME = 64
LARGEST = 10**18
"""Numbers of a variable are below it."""


class VariablesWrong(InvalidInput):
    """A message of a template lacks a variable, or brings one that its text does not have."""


class Templates:
    """Texts by name.

        Templates({"code": "Your code is {code}"}).render("code", {"code": 4711})

    Raises:
        ConfigurationError: A text is empty, its braces do not match, or they hold more than a name.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._parts = {name: _parts(name, text) for name, text in texts.items()}

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """The text, with the values of its variables.

        Raises:
            InvalidInput: There is no such template, or a value is neither a text nor a whole number.
            VariablesWrong: A variable is missing, or unknown.
        """
        parts = self._parts.get(name)
        if parts is None:
            known = ", ".join(sorted(self._parts)) or "none; PACELINE_SMS_TEMPLATES has them"
            raise InvalidInput("template", f"is not known; there is {known}")
        wanted = {variable for _, variable in parts if variable is not None}
        for variable, value in variables.items():
            if variable not in wanted:
                has = ", ".join(sorted(wanted)) or "none"
                raise VariablesWrong(
                    f"variables.{variable[:LONGEST_NAME]}", f"is not in the template {name}, which has {has}"
                )
            if not _is_value(value):
                raise InvalidInput(f"variables.{variable}", "must be a text or a whole number")
        if missing := sorted(wanted - variables.keys()):
            raise VariablesWrong(
                f"variables.{missing[0]}", f"is missing; the template {name} needs {', '.join(missing)}"
            )
        return "".join(text + ("" if variable is None else str(variables[variable])) for text, variable in parts)


def _is_value(value: object) -> bool:
    # Python writes no number of thousands of digits.
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return is_number or isinstance(value, str)


def _parts(name: str, text: str) -> list[tuple[str, str | None]]:
    """The pieces of a text, each with the variable after it."""
    if not (name and len(name) <= LONGEST_NAME and name.isprintable() and isinstance(text, str) and text.strip()):
        raise ConfigurationError(
            "templates", f"{name!r:.70} must have a name of up to {LONGEST_NAME} characters, and a text"
        )
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigurationError("templates", f"{name}: {error}; write {{{{ for a brace") from None
    for _, variable, layout, conversion in parsed:
        if variable is not None and (not variable.isidentifier() or layout or conversion):
            raise ConfigurationError("templates", f"{name}: {{{variable}}} must hold a name, as {{code}}")
    return [(piece, variable) for piece, variable, _, _ in parsed]
