"""How values travel to and from Temporal: as Pydantic does it, and large ones compressed."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec

ENCODING = b"binary/zlib"
LARGE = 128 * 1024
"""Smaller payloads stay readable in Temporal's own tools."""


class LargePayloadCodec(PayloadCodec):
    """Compresses payloads above `LARGE` bytes, so that a context of the queue's 2 MB passes Temporal's limit of 2 MB,
    which counts the escaped text."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [payload if len(payload.data) <= LARGE else _compressed(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(zlib.decompress(payload.data))
            if payload.metadata.get("encoding") == ENCODING
            else payload
            for payload in payloads
        ]


def _compressed(payload: Payload) -> Payload:
    return Payload(metadata={"encoding": ENCODING}, data=zlib.compress(payload.SerializeToString(), 1))


DATA_CONVERTER: DataConverter = dataclasses.replace(pydantic_data_converter, payload_codec=LargePayloadCodec())
