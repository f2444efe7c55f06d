"""The data converter for Temporal: Pydantic's, large payloads compressed, optionally encrypted."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec

from paceline.dispatch.encryption import Encryption

ENCODING = b"binary/zlib"
ENCRYPTED = b"binary/encrypted"
KEY_ID = "encryption-key-id"
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


class EncryptionCodec(LargePayloadCodec):
    """Encrypts every payload, after the large ones were compressed. Payloads that are not encrypted are read as they
    are, so that encryption can be turned on while workflows run."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        key = self._encryption.key_id
        metadata = {"encoding": ENCRYPTED, KEY_ID: key.encode()}
        return [
            Payload(metadata=metadata, data=self._encryption.encrypt_bytes(payload.SerializeToString(), ENCRYPTED))
            for payload in await super().encode(payloads)
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await super().decode([self._decrypted(payload) for payload in payloads])

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        key_id = payload.metadata[KEY_ID].decode()
        return Payload.FromString(self._encryption.decrypt_bytes(payload.data, key_id, ENCRYPTED))


def data_converter(encryption: Encryption | None = None) -> DataConverter:
    """The data converter; with `encryption`, Temporal sees only ciphertext."""
    codec = LargePayloadCodec() if encryption is None else EncryptionCodec(encryption)
    return dataclasses.replace(pydantic_data_converter, payload_codec=codec)


DATA_CONVERTER: DataConverter = data_converter()
