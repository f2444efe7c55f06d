"""A task's arguments as JSON and back, checked against the function's annotations by pydantic."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Any, NamedTuple

from paceline.dispatch.model import LARGEST_RESULT, Completion, context_json
from paceline.errors import ConfigurationError, InvalidInput

NOT_KEPT = "its result was not kept"
"""The beginning of the detail of a completion whose result can't be stored."""
PLAIN = (int, str, bool, float)
"""Values of exactly these types, for the same annotation, are the same in Python and in JSON; so are lists of them and
dicts of them by `str`."""


class UnknownParameter(InvalidInput):
    """A call has an argument that this version of the function does not have: a newer one queued it."""


class LoadedCall(NamedTuple):
    """A call that a context describes, with every default filled in."""

    args: list[Any]
    kwargs: dict[str, Any]


class _Codec(NamedTuple):
    """The validator and serializer of one parameter. The methods are pydantic's core: those of `TypeAdapter` around
    them cost more than they do."""

    plain: type | None
    plain_inside: type | None
    """The element type, if `plain` is a list or a dict."""
    validate: Callable[[Any], Any]
    validate_json: Callable[[str], Any]
    dump: Callable[..., Any]

    @classmethod
    def of(cls, annotation: Any) -> _Codec:
        from pydantic import TypeAdapter
        from pydantic_core import SchemaSerializer

        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        checks = adapter.validator
        # Pydantic would write a NaN in an unknown type as null; this keeps it a NaN, which is rejected later.
        writes = SchemaSerializer(adapter.core_schema, {"ser_json_inf_nan": "constants"})
        return cls(*_plain(annotation), checks.validate_python, checks.validate_json, writes.to_python)

    def is_plain(self, value: Any) -> bool:
        """Whether the value needs no validation and no conversion."""
        kind: Any = type(value)
        if kind is not self.plain:
            return False
        if kind is list:
            return _are_plain(value, self.plain_inside)
        if kind is dict:
            return _are_plain(value, str) and _are_plain(value.values(), self.plain_inside)
        return kind is not str or _are_plain((value,), str)


def _plain(annotation: Any) -> tuple[type | None, type | None]:
    """The type of plain values of an annotation, and of their elements."""
    if annotation in PLAIN:
        return annotation, None
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is list and inside[0] in PLAIN:
        return list, inside[0]
    if typing.get_origin(annotation) is dict and inside[0] is str and inside[1] in PLAIN:
        return dict, inside[1]
    return None, None


def _are_plain(values: Collection[Any], plain: type | None) -> bool:
    # A text that is not ASCII may contain lone surrogates.
    return {*map(type, values)} <= {plain} and (plain is not str or all(map(str.isascii, values)))


class Arguments:
    """The parameters of one function. The context of an item is a JSON object with one member per argument given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ConfigurationError(name, "a task takes named parameters only, no *args or **kwargs")
        parameters = self._signature.parameters.values()
        self._defaults = {one.name: one.default for one in parameters}
        self._required = {one.name for one in parameters if one.default is one.empty}
        self._positional = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
        self._by_keyword = {one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY}
        needed = [place for place, name in enumerate(self._defaults, 1) if name in self._required]
        self._fewest_args = max(needed, default=0)
        """Of a call without keywords; more than there are positional ones if a keyword is required."""

    @cached_property
    def _codecs(self) -> dict[str, _Codec]:
        # Imported here: importing paceline imports no framework. At first use: annotations may name later classes.
        from pydantic import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

        name = "annotations"
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
            codecs: dict[str, _Codec] = {}
            for name in (*self._signature.parameters, "return"):
                codecs[name] = _Codec.of(hints.get(name, Any))
        except (NameError, TypeError, PydanticSchemaGenerationError, PydanticUndefinedAnnotation) as error:
            problem = str(error).partition("\n")[0][:300]
            raise ConfigurationError(name, f"of task {self._function.__name__}: {problem}") from error
        return codecs

    def check(self) -> None:
        """Raises `ConfigurationError` if an annotation can't be used."""
        _ = self._codecs

    @property
    def names(self) -> Collection[str]:
        """The names of the parameters."""
        return self._defaults.keys()

    def required(self) -> list[str]:
        """The parameters without a default."""
        return [name for name in self._defaults if name in self._required]

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The context of a call. Arguments that are not given are left out: the worker's default applies.

        Raises:
            InvalidInput: the function can't be called like this; names the argument.
        """
        if not kwargs and self._fewest_args <= len(args) <= len(self._positional):
            return self._dumped(zip(self._positional, args, strict=False))
        given = dict(zip(self._positional, args, strict=False))
        if (
            len(args) > len(self._positional)
            or not kwargs.keys() <= self._by_keyword
            or not given.keys().isdisjoint(kwargs)
            or not self._required <= given.keys() | kwargs.keys()
        ):
            return self._dumped(self._bound(self._signature, args, kwargs).items())
        if kwargs:
            given |= kwargs
            given = {name: given[name] for name in self._defaults if name in given}
        return self._dumped(given.items())

    def dump_rest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The context of a call whose first argument is not known yet.

        Raises:
            InvalidInput: the function can't be called like this; names the argument.
        """
        first, *others = self._signature.parameters.values()
        if first.name in kwargs:
            raise InvalidInput(first.name, f"of {self._function.__name__} is the result of the call before")
        return self._dumped(self._bound(self._signature.replace(parameters=others), args, kwargs).items())

    def first_parameter(self) -> str:
        """The name of the first parameter.

        Raises:
            InvalidInput: there is none.
        """
        for name in self._signature.parameters:
            return name
        raise InvalidInput("calls", f"{self._function.__name__} has no parameter for what comes before it")

    def _bound(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput("arguments", f"of {self._function.__name__}: {error}") from None

    def _dumped(self, given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        codecs = self._codecs
        context: dict[str, Any] = {}
        for name, value in given:
            codec = codecs[name]
            if codec.is_plain(value):
                context[name] = value
                continue
            try:
                context[name] = codec.dump(codec.validate(value), mode="json", by_alias=True)
            except ValueError as error:
                raise InvalidInput(name, _problem(error)) from None
        return context

    def load(self, context: Any) -> LoadedCall:
        """The call that a context describes.

        Raises:
            UnknownParameter: it has an argument that the function does not have; names it.
            InvalidInput: the context does not fit the function; names the argument.
        """
        if not isinstance(context, dict):
            raise InvalidInput("context", f"of {self._function.__name__} must be an object of its arguments")
        codecs = self._codecs
        values = dict(self._defaults)
        for name, value in context.items():
            if name not in values:
                raise UnknownParameter(name, f"is no parameter of this version of {self._function.__name__}")
            codec = codecs[name]
            try:
                # As JSON: a strict model takes a time as text from JSON only.
                values[name] = value if codec.is_plain(value) else codec.validate_json(json.dumps(value))
            except ValueError as error:
                raise InvalidInput(name, _problem(error)) from None
        if not self._required <= context.keys():
            missing = next(name for name in self.required() if name not in context)
            raise InvalidInput(missing, f"is missing; {self._function.__name__} needs it")
        return LoadedCall([values.pop(name) for name in self._positional], values)

    def json_of(self, result: Any) -> Any:
        """A result as a value of JSON.

        Raises:
            InvalidInput: it can't be written as JSON.
        """
        from pydantic_core import PydanticSerializationError

        try:
            return self._codecs["return"].dump(result, mode="json", by_alias=True, warnings="none")
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidInput("result", f"can't be written as JSON: {error}"[:300]) from None

    def result_of(self, value: Any) -> Any:
        """A stored result as the function's annotation has it.

        Raises:
            InvalidInput: it does not fit the annotation of this version.
        """
        codec = self._codecs["return"]
        try:
            return value if codec.is_plain(value) else codec.validate_json(json.dumps(value))
        except ValueError as error:
            raise InvalidInput("result", f"of {self._function.__name__}: {_problem(error)}") from None

    def completion(self, result: Any) -> Completion | None:
        """The result to store. A result that can't be stored does not undo the work: the audit has the reason."""
        if result is None:
            return None
        from pydantic_core import PydanticSerializationError

        try:
            value = self._codecs["return"].dump(result, mode="json", by_alias=True, warnings="none")
            return Completion(context_json(value, LARGEST_RESULT))
        except (PydanticSerializationError, ValueError, InvalidInput) as error:
            problem = error.problem if isinstance(error, InvalidInput) else str(error)
            return Completion(None, f"{NOT_KEPT}: {problem}"[:500])


def _problem(error: ValueError) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return f"can't be written as JSON: {error}"[:300]
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    inside = ".".join(str(part) for part in first["loc"])
    return f"{inside}: {first['msg']}" if inside else str(first["msg"])
