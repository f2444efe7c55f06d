"""`Shape`: a pydantic model with JSON's member names, and errors that name the member as it was typed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema

from headgate.durations import format_instant, from_ms
from headgate.errors import InvalidInput


class InvalidMember(InvalidInput):
    """A member of a JSON document is wrong. `field` is its path, as it was typed."""


@dataclass(frozen=True, slots=True)
class Expects:
    """In a field's annotation: what the error says of a value of the wrong type, after "must be"."""

    what: str


def _as_text(value: datetime | int) -> str:
    return format_instant(from_ms(value) if isinstance(value, int) else value)


Instant = Annotated[str, BeforeValidator(_as_text)]
"""A time in an answer: `Shape.of` formats a `datetime` or epoch milliseconds."""


class Shape(BaseModel):
    """One JSON object. Python says `event_id`, JSON says `eventId`; unknown members are refused.

    request = SlotRequest.parse({"eventId": "pay-1", "requestedTime": "2027-03-01T16:00:00Z"})
    request.event_id
    """

    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    @classmethod
    def of(cls, *sources: object, **members: Any) -> Self:
        """The shape whose members are the attributes of the same names, of the last source that has them."""
        values = {
            name: getattr(source, name) for source in sources for name in cls.model_fields if hasattr(source, name)
        }
        shape: Self = cls.__pydantic_validator__.validate_python(values | members, from_attributes=True)
        return shape

    @classmethod
    def parse(cls, value: dict[str, Any], prefix: str = "") -> Self:
        """The shape of a parsed JSON object; `prefix` is the path of the object in its document.

        Raises:
            InvalidMember: a member is missing, unknown, or of the wrong type.
        """
        try:
            parsed: Self = cls.__pydantic_validator__.validate_python(value, by_name=False)
        except ValidationError as error:
            raise cls._explain(error, value, prefix) from None
        return parsed

    @classmethod
    def _explain(cls, error: ValidationError, value: dict[str, Any], prefix: str) -> InvalidMember:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        # A misspelt member is unknown, and another one is missing because of that: the unknown one is to be corrected.
        first = min(errors, key=lambda problem: problem["type"] != "extra_forbidden")
        member = str(first["loc"][0])
        fields = {field.alias: field for field in cls.model_fields.values()}
        if member not in fields:
            return InvalidMember(f"{prefix}{member}", f"is unknown; known are {', '.join(map(str, fields))}")
        if value.get(member) is None:
            return InvalidMember(f"{prefix}{member}", "is required")
        expected = [note.what for note in fields[member].metadata if isinstance(note, Expects)]
        return InvalidMember(f"{prefix}{member}", f"must be {expected[0]}")

    def dump(self) -> dict[str, Any]:
        """As a value for `json.dumps`, with the members that were given."""
        value: dict[str, Any] = self.__pydantic_serializer__.to_python(self, mode="json", exclude_unset=True)
        return value

    def dump_json(self) -> bytes:
        """As JSON text, with the members that were given: the prepared serialiser of fast routes."""
        return self.__pydantic_serializer__.to_json(self, exclude_unset=True)

    @classmethod
    def request_schema(cls) -> dict[str, Any]:
        """The JSON schema of a request body, for OpenAPI."""
        schema = cls.model_json_schema(schema_generator=_UntitledMembers)
        definitions = schema.pop("$defs", {})
        for name, member in schema["properties"].items():
            member.pop("default", None)  # of an optional member: null, which its type says already
            if "$ref" in member:
                schema["properties"][name] = definitions[member["$ref"].removeprefix("#/$defs/")]
        return schema


class _UntitledMembers(GenerateJsonSchema):
    """A member's name says as much as pydantic's title of it would."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
