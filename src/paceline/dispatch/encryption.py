"""Encryption at rest: contexts, results and what applications store, as AES-GCM texts, under keys that can be rotated.

Each text names its key, and what is looked up is searched by a keyed hash under every key, so that keys can be rotated
while work goes on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from paceline.errors import ConfigurationError, PacelineError, StoreUnavailable
from paceline.extras import require

KEY_BYTES = 32
NONCE_BYTES = 12
PREFIX = "enc1:"
"""Begins every encrypted text. No JSON text begins so."""


class KeyMissing(PacelineError):
    """It is encrypted under a key that this process does not have."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"it is encrypted with the key {key_id}, which this process does not have")
        self.key_id = key_id


class InvalidCiphertext(PacelineError):
    """The ciphertext was modified, or belongs to another item."""

    def __init__(self) -> None:
        super().__init__("it can't be decrypted: it was changed, or moved from another item")


class Encryption:
    """Keys for AES-256-GCM: the first one encrypts, all of them decrypt.

        Encryption(["<new key: base64 of 32 bytes>", "<old key>"])

    A key's id is the beginning of its SHA-256 hash. It is stored with each text, so that keys can be rotated.

    Raises:
        ConfigurationError: a key is wrong.
        MissingExtra: `paceline[encryption]` is not installed.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        require("encryption", "encryption")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if isinstance(keys, str | bytes) or not keys:
            raise ConfigurationError("encryption_keys", "must be a list of one key or more")
        decoded = [_checked_key(key) for key in keys]
        self._ciphers = {hashlib.sha256(key).hexdigest()[:8]: AESGCM(key) for key in decoded}
        self._lookup_keys = [hashlib.blake2b(b"paceline lookup", key=key).digest() for key in decoded]
        self.key_id = next(iter(self._ciphers))
        """Of the key that encrypts."""

    def encrypt(self, text: str, about: str) -> str:
        """The text, encrypted. `about` is authenticated with it: decryption needs the same value."""
        data = self.encrypt_bytes(text.encode("utf-8", "surrogatepass"), about.encode())
        return f"{PREFIX}{self.key_id}:{base64.b64encode(data).decode()}"

    def decrypt(self, text: str, about: str) -> str:
        """What `encrypt` was given. A text that is not encrypted is returned as it is.

        Raises:
            KeyMissing: none of the keys is its own.
            InvalidCiphertext: it was changed, or belongs to something else.
        """
        if not text.startswith(PREFIX):
            return text
        key_id, _, data = text.removeprefix(PREFIX).partition(":")
        try:
            raw = base64.b64decode(data, validate=True)
        except binascii.Error:
            raise InvalidCiphertext from None
        return self.decrypt_bytes(raw, key_id, about.encode()).decode("utf-8", "surrogatepass")

    def seal(self, data: bytes, about: str) -> bytes:
        """`encrypt`, for bytes."""
        return f"{PREFIX}{self.key_id}:".encode() + self.encrypt_bytes(data, about.encode())

    def unseal(self, data: bytes, about: str) -> bytes:
        """`decrypt`, for bytes."""
        if not data.startswith(PREFIX.encode()):
            return data
        key_id, _, raw = data.removeprefix(PREFIX.encode()).partition(b":")
        return self.decrypt_bytes(raw, key_id.decode("ascii", "replace"), about.encode())

    def hashes(self, number: int) -> list[int]:
        """What a 64-bit number is looked up by, so that nobody without a key can try numbers: under the key that
        encrypts, then under each other one. The first is stored."""
        data = number.to_bytes(8, "big", signed=True)
        return [_signed(hashlib.blake2b(data, key=key, digest_size=8).digest()) for key in self._lookup_keys]

    def encrypt_bytes(self, data: bytes, about: bytes = b"") -> bytes:
        """The bytes, encrypted under the first key; a random nonce first."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._ciphers[self.key_id].encrypt(nonce, data, about)

    def decrypt_bytes(self, data: bytes, key_id: str, about: bytes = b"") -> bytes:
        """The inverse of `encrypt_bytes`.

        Raises:
            KeyMissing: none of the keys is its own.
            InvalidCiphertext: it was changed, or belongs to something else.
        """
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise KeyMissing(key_id[:16])
        try:
            return cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], about)
        except (InvalidTag, ValueError):
            raise InvalidCiphertext from None


def _signed(digest: bytes) -> int:
    return int.from_bytes(digest, "big", signed=True)


def encryption_of(keys: Sequence[str] | None) -> Encryption | None:
    """The encryption under these keys; None without any."""
    return None if keys is None else Encryption(keys)


def hidden(encryption: Encryption | None, text: str, *about: object) -> str:
    """The text as it is stored. It can be read only as a text about the same thing."""
    return text if encryption is None else encryption.encrypt(text, _about(*about))


def revealed(encryption: Encryption | None, text: str, *about: object) -> str:
    """A stored text, decrypted as far as the keys go. Without its key, words that name the key."""
    try:
        return decrypted(encryption, text, *about)
    except StoreUnavailable as error:
        return str(error)


def decrypted(encryption: Encryption | None, text: str, *about: object) -> str:
    """The inverse of `hidden`.

    Raises:
        StoreUnavailable: This process lacks the key. Another one may have it.
    """
    key_id = shown_key(text)
    if key_id is None:
        return text
    if encryption is None:
        raise StoreUnavailable(f"encrypted with the key {key_id}")
    try:
        return encryption.decrypt(text, _about(*about))
    except (KeyMissing, InvalidCiphertext) as error:
        raise StoreUnavailable(str(error)) from error


def hidden_bytes(encryption: Encryption | None, data: bytes, *about: object) -> bytes:
    """`hidden`, of bytes."""
    return data if encryption is None else encryption.seal(data, _about(*about))


def decrypted_bytes(encryption: Encryption | None, data: bytes, *about: object) -> bytes:
    """`decrypted`, of bytes.

    Raises:
        StoreUnavailable: This process lacks the key. Another one may have it.
    """
    if encryption is None:
        return data
    try:
        return encryption.unseal(data, _about(*about))
    except (KeyMissing, InvalidCiphertext) as error:
        raise StoreUnavailable(str(error)) from error


def lookups(encryption: Encryption | None, number: int) -> list[int]:
    """What stands for a number that is looked up in a table. The first is stored; rows that are older than the present
    key, or than all keys, have one of the others."""
    return [number] if encryption is None else [*encryption.hashes(number), number]


def _about(*about: object) -> str:
    return "/".join(map(str, about))


def shown_key(text: str | None) -> str | None:
    """The id of the key that a text is encrypted with; None if it is not encrypted."""
    return text.removeprefix(PREFIX).partition(":")[0][:16] if text is not None and text.startswith(PREFIX) else None


def _checked_key(key: str) -> bytes:
    """The error message leaves the key out."""
    try:
        decoded = base64.b64decode(key, validate=True) if isinstance(key, str) else b""
    except (binascii.Error, ValueError):
        decoded = b""
    if len(decoded) != KEY_BYTES:
        raise ConfigurationError(
            "encryption_keys", "each must be base64 of 32 random bytes; `openssl rand -base64 32` makes one"
        )
    return decoded


def readable(context: str | None) -> Any:
    """The context's value; a text that is no JSON is shown as it is, for the operator to see."""
    if context is None:
        return None
    if (key := shown_key(context)) is not None:
        return f"encrypted with the key {key}"
    try:
        return json.loads(context)
    except (ValueError, RecursionError):
        return context
