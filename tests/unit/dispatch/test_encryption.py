"""Encryption: what is hidden, what is refused, and keys that change."""

from __future__ import annotations

import base64

import pytest

from paceline.dispatch.encryption import (
    PREFIX,
    Encryption,
    InvalidCiphertext,
    KeyMissing,
    decrypted,
    decrypted_bytes,
    hidden,
    hidden_bytes,
    lookups,
    revealed,
    shown_key,
)
from paceline.errors import ConfigurationError, StoreUnavailable

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
RINGS = [None, Encryption([OLD]), Encryption([NEW, OLD])]


@pytest.mark.parametrize("text", ["{}", '{"iban":"DE89370400440532013000"}', "ä" * 100_000, "\ud800", ""])
def test_what_is_encrypted_is_hidden_and_comes_back(text: str) -> None:
    encryption = Encryption([OLD])
    stored = encryption.encrypt(text, "context/PAY/1")
    assert "DE89370400440532013000" not in stored
    assert stored != encryption.encrypt(text, "context/PAY/1"), "the nonce is random"
    assert encryption.decrypt(stored, "context/PAY/1") == text


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    before, after = Encryption([OLD]), Encryption([NEW, OLD])
    stored = before.encrypt("x", "a")
    assert after.decrypt(stored, "a") == "x"
    assert shown_key(after.encrypt("x", "a")) == after.key_id != before.key_id
    with pytest.raises(KeyMissing, match=before.key_id):
        Encryption([NEW]).decrypt(stored, "a")


def test_a_text_that_is_not_encrypted_is_returned_as_it_is() -> None:
    assert Encryption([OLD]).decrypt('{"a":1}', "a") == '{"a":1}'


def test_a_changed_or_moved_text_is_refused() -> None:
    encryption = Encryption([OLD])
    stored = encryption.encrypt("x", "context/PAY/1")
    start = f"{PREFIX}{encryption.key_id}:"
    for text, about in [
        (stored, "context/PAY/2"),
        (stored[:-6] + "AAAA==", "context/PAY/1"),
        (start + "AAAA", "context/PAY/1"),
        (start, "context/PAY/1"),
        (start + "!!", "context/PAY/1"),
    ]:
        with pytest.raises(InvalidCiphertext):
            encryption.decrypt(text, about)


@pytest.mark.parametrize("keys", [[], "x", [""], ["AAAA"], ["not base64!" * 4], [OLD, "short"], [None]])
def test_a_wrong_key_is_refused_and_not_shown(keys: object) -> None:
    with pytest.raises(ConfigurationError, match="encryption_keys") as caught:
        Encryption(keys)  # type: ignore[arg-type]
    assert "short" not in str(caught.value)


def test_bytes_are_sealed_like_texts() -> None:
    before, after = Encryption([OLD]), Encryption([NEW, OLD])
    sealed = before.seal(b"\x00 DE89370400440532013000", "chunk/1")
    assert b"DE89370400440532013000" not in sealed
    assert after.unseal(sealed, "chunk/1") == b"\x00 DE89370400440532013000"
    assert after.unseal(b"never sealed", "chunk/1") == b"never sealed"
    with pytest.raises(InvalidCiphertext):
        after.unseal(sealed, "chunk/2")
    with pytest.raises(KeyMissing, match=before.key_id):
        Encryption([NEW]).unseal(sealed, "chunk/1")


@pytest.mark.parametrize("number", [0, 1, -(2**63), 2**63 - 1])
def test_a_number_is_looked_up_by_its_hash_under_each_key(number: int) -> None:
    before, after = Encryption([OLD]), Encryption([NEW, OLD])
    (stored,) = before.hashes(number)
    assert stored not in (number, *Encryption([NEW]).hashes(number))
    assert after.hashes(number) == [*Encryption([NEW]).hashes(number), stored]
    assert -(2**63) <= stored < 2**63
    assert before.hashes(number) == [stored]


def test_texts_and_bytes_are_bound_to_what_they_are_about() -> None:
    ring = RINGS[1]
    text = hidden(ring, "raw", "reject", "f", 1)
    assert revealed(ring, text, "reject", "f", 1) == "raw"
    assert "can't be decrypted" in revealed(ring, text, "reject", "f", 2)
    assert revealed(ring, "plain", "reject", "f", 1) == "plain"
    assert revealed(None, text, "reject", "f", 1) == f"encrypted with the key {Encryption([OLD]).key_id}"
    assert decrypted(ring, text, "reject", "f", 1) == "raw"
    with pytest.raises(StoreUnavailable, match="which this process does not have"):
        decrypted(Encryption([NEW]), text, "reject", "f", 1)
    chunk = hidden_bytes(ring, b"staged", "chunk", "f", 1)
    assert decrypted_bytes(ring, chunk, "chunk", "f", 1) == b"staged"
    assert hidden_bytes(None, b"staged") == decrypted_bytes(None, b"staged") == b"staged"
    with pytest.raises(StoreUnavailable, match="which this process does not have"):
        decrypted_bytes(Encryption([NEW]), chunk, "chunk", "f", 1)


def test_lookups_find_what_any_key_or_none_has_stored() -> None:
    stored = [lookups(ring, 17)[0] for ring in RINGS]
    assert len(set(stored)) == 3
    assert set(stored) == set(lookups(RINGS[-1], 17))
