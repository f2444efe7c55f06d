"""A task's arguments as JSON and back, checked against the function's annotations by pydantic."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headgate.dispatch.model import LARGEST_RESULT, Completion, context_json
from headgate.errors import ConfigurationError, InvalidInput

if TYPE_CHECKING:
    from pydantic import TypeAdapter

RESERVED = {"key", "at", "connection", "priority", "lane"}
"""Options of `enqueue`, which no parameter may be named like."""


class Arguments:
    """The parameters of one function. The context of an item is a JSON object with one member per argument given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ConfigurationError(name, "a task takes named parameters only, no *args or **kwargs")
            if name in RESERVED:
                raise ConfigurationError(name, f"is an option of enqueue; rename the parameter of {function.__name__}")

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        # Imported here: importing headgate imports no framework. At first use: annotations may name later classes.
        from pydantic import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeAdapter

        name = "annotations"
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
            adapters: dict[str, TypeAdapter[Any]] = {}
            for name in (*self._signature.parameters, "return"):
                adapters[name] = TypeAdapter(hints.get(name, Any))
        except (NameError, TypeError, PydanticSchemaGenerationError, PydanticUndefinedAnnotation) as error:
            problem = str(error).partition("\n")[0][:300]
            raise ConfigurationError(name, f"of task {self._function.__name__}: {problem}") from error
        return adapters

    def check(self) -> None:
        """`ConfigurationError` if an annotation can't be used."""
        _ = self._adapters

    def required(self) -> list[str]:
        """The parameters without a default."""
        return [name for name, one in self._signature.parameters.items() if one.default is one.empty]

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The context of a call. What the call leaves to a default is left out: the worker's default counts.

        Raises:
            InvalidInput: the function can't be called like this; names the argument.
        """
        return self._dumped(self._signature, args, kwargs)

    def dump_rest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The context of a call whose first argument is not known yet.

        Raises:
            InvalidInput: the function can't be called like this; names the argument.
        """
        first, *others = self._signature.parameters.values()
        if first.name in kwargs:
            raise InvalidInput(first.name, f"of {self._function.__name__} is the result of the call before")
        return self._dumped(self._signature.replace(parameters=others), args, kwargs)

    def first_parameter(self) -> str:
        """The name of the first parameter.

        Raises:
            InvalidInput: there is none.
        """
        for name in self._signature.parameters:
            return name
        raise InvalidInput("calls", f"{self._function.__name__} has no parameter for what comes before it")

    def _dumped(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput("arguments", f"of {self._function.__name__}: {error}") from None
        context: dict[str, Any] = {}
        for name, value in given.items():
            adapter = self._adapters[name]
            try:
                context[name] = adapter.dump_python(adapter.validate_python(value), mode="json", by_alias=True)
            except ValidationError as error:
                raise InvalidInput(name, _first_problem(error)) from None
            except (PydanticSerializationError, ValueError) as error:
                raise InvalidInput(name, f"can't be written as JSON: {error}"[:300]) from None
        return context

    def load(self, context: Any) -> inspect.BoundArguments:
        """The call that a context describes.

        Raises:
            InvalidInput: the context does not fit the function; names the argument.
        """
        from pydantic import ValidationError

        if not isinstance(context, dict):
            raise InvalidInput("context", f"of {self._function.__name__} must be an object of its arguments")
        bound = self._signature.bind_partial()
        for name, value in context.items():
            if name not in self._signature.parameters:
                raise InvalidInput(name, f"is no parameter of this version of {self._function.__name__}")
            try:
                # As JSON: a strict model takes a time as text from JSON only.
                bound.arguments[name] = self._adapters[name].validate_json(json.dumps(value))
            except ValidationError as error:
                raise InvalidInput(name, _first_problem(error)) from None
        for name, parameter in self._signature.parameters.items():
            if parameter.default is parameter.empty and name not in bound.arguments:
                raise InvalidInput(name, f"is missing; {self._function.__name__} needs it")
        bound.apply_defaults()
        return bound

    def json_of(self, result: Any) -> Any:
        """A result as a value of JSON.

        Raises:
            InvalidInput: it can't be written as JSON.
        """
        from pydantic_core import PydanticSerializationError

        try:
            return self._adapters["return"].dump_python(result, mode="json", by_alias=True, warnings="none")
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidInput("result", f"can't be written as JSON: {error}"[:300]) from None

    def completion(self, result: Any) -> Completion | None:
        """What is kept of a result. A result that can't be kept does not undo the work: the audit says why."""
        from pydantic_core import PydanticSerializationError

        if result is None:
            return None
        try:
            value = self._adapters["return"].dump_python(result, mode="json", by_alias=True, warnings="none")
            return Completion(context_json(value, LARGEST_RESULT))
        except (PydanticSerializationError, ValueError, InvalidInput) as error:
            problem = error.problem if isinstance(error, InvalidInput) else str(error)
            return Completion(None, f"its result was not kept: {problem}"[:500])


def _first_problem(error: Any) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    inside = ".".join(str(part) for part in first["loc"])
    return f"{inside}: {first['msg']}" if inside else str(first["msg"])
