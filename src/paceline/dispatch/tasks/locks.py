"""The lock of a task: a name in which arguments are filled in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from paceline.dispatch.model import checked_lock
from paceline.errors import ConfigurationError, InvalidInput


@dataclass(frozen=True, slots=True)
class Lock:
    """The name of the locks of a task's calls, such as `invoice:{number}`."""

    template: str
    defaults: Mapping[str, Any]
    """Of the arguments in it that a call may leave out."""

    @classmethod
    def of(cls, template: str | None, function: Callable[..., Any]) -> Lock | None:
        """The lock of a function's calls; None without a name.

        Raises:
            ConfigurationError: the name is wrong, or no argument of the function fits into it.
        """
        try:
            if checked_lock(template) is None or template is None:
                return None
            fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
        except InvalidInput as error:
            raise ConfigurationError(error.field, error.problem) from None
        except ValueError as error:
            raise ConfigurationError("lock", f"{template!r}: {error}") from None
        parameters = inspect.signature(function).parameters
        for field in fields:
            if field not in parameters:
                known = ", ".join(parameters) or "none"
                raise ConfigurationError("lock", f"{{{field}}} is no argument of {function.__name__}; it has {known}")
        defaults = {field: parameters[field].default for field in fields}
        return cls(template, {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty})

    def name(self, context: Mapping[str, Any]) -> str:
        """The lock of a call with these arguments.

        Raises:
            InvalidInput: it is no name of a lock, or an argument in it is not known yet.
        """
        try:
            name = self.template.format_map({**self.defaults, **context})
        except (KeyError, ValueError) as error:
            raise InvalidInput("lock", f"{self.template!r} can't be filled in: {error}") from None
        return str(checked_lock(name))
