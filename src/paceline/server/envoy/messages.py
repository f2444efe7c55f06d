"""Envoy's messages: the definitions of `envoy-data-plane`, for the parser of `protobuf`.

That package defines messages as dataclasses, which take a quarter of a millisecond to parse. protobuf's own classes
take microseconds, and need the same definitions as descriptors. They are made here, in a separate pool, so that they do
not conflict with Envoy's descriptors in an application's global pool.

(`xds-protos` would have them ready-made, but it overwrites files of `opentelemetry-proto`: grpc/grpc#42926.)
"""

from __future__ import annotations

import warnings
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

with warnings.catch_warnings():
    # It uses validators that are deprecated in pydantic 2; that is the package's concern.
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.service.ratelimit import v3

PACKAGE = "paceline.envoy"
LEFT_OUT = {"dynamic_metadata", "quota"}
"""Members of a response that are never sent."""


def _message_classes(*roots: Any) -> dict[str, Any]:
    """The classes of these messages, and of all messages in them, by name."""
    file = FileDescriptorProto(name="paceline/envoy.proto", package=PACKAGE, syntax="proto3")
    waiting, known = list(roots), set()
    while waiting:
        message = waiting.pop()
        if message.__name__ not in known:
            known.add(message.__name__)
            waiting += _add_message(file.message_type.add(name=message.__name__), message)
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in known}


def _add_message(descriptor: DescriptorProto, message: Any) -> list[Any]:
    """Adds the fields of a message; returns the messages they hold."""
    definitions = message._betterproto
    inner = []
    for name, definition in definitions.meta_by_field_name.items():
        if name in LEFT_OUT:
            continue
        field = descriptor.field.add(name=name, number=definition.number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if definition.repeated:
            field.label = FieldDescriptorProto.LABEL_REPEATED
        # An enumeration is a number on the wire.
        kind = "int32" if definition.proto_type == "enum" else definition.proto_type
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        if kind == "message":
            # Durations and optional numbers are messages on the wire, and plain values in a dataclass.
            held = definition.unwrap() if definition.unwrap else definitions.cls_by_field[name]
            field.type_name = f".{PACKAGE}.{held.__name__}"
            inner.append(held)
    return inner


_classes = _message_classes(v3.RateLimitRequest, v3.RateLimitResponse)

RateLimitRequest: Any = _classes["RateLimitRequest"]
RateLimitResponse: Any = _classes["RateLimitResponse"]
UNITS: dict[str, int] = {unit.name: int(unit) for unit in v3.RateLimitResponseRateLimitUnit}
OK = int(v3.RateLimitResponseCode.OK)
OVER_LIMIT = int(v3.RateLimitResponseCode.OVER_LIMIT)
