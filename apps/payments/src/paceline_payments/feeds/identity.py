"""The identity of a payment in a pain.001 document, and the id that follows from it. Pure.

A payment is identified by its UETR, or by its initiating party, message, payment information, and instruction or
position. The end-to-end id is the customer's: it travels, and identifies nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from paceline_payments.iso20022 import NOT_PROVIDED


def payment_id_of(
    header: Mapping[str, Any], information: Mapping[str, Any], transaction: Mapping[str, Any], position: int
) -> str:
    """The id of a payment: its UETR, or `{message}-{payment information}-{instruction}-{digest}`.

    The readable part is for people; the digest is of the whole identity. `position` counts from 1 within the payment
    information, and stands for an instruction id that is not provided. Blanks around a text are none of it: the same
    document, indented by a tool, is the same payments.
    """
    ids = transaction.get("PmtId", {})
    if uetr := ids.get("UETR"):
        return str(uetr)
    message, own = header.get("MsgId", "").strip(), information.get("PmtInfId", "").strip()
    instruction = ids.get("InstrId", "").strip()
    if instruction in ("", NOT_PROVIDED):
        instruction = f"#{position}"
    party = _stripped(header.get("InitgPty", {}))
    identity = json.dumps([party, message, own, instruction], sort_keys=True)
    digest = blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{file_key(message, own, instruction)}-{digest}"


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, Mapping):
        return {name: _stripped(inner) for name, inner in value.items()}
    return [_stripped(inner) for inner in value] if isinstance(value, list) else value


def file_key(*ids: str) -> str:
    """Ids of a document as the readable part of a payment's id."""
    return "-".join(_readable(part.strip()) for part in ids)


def _readable(part: str) -> str:
    """A part of the id in characters that a header and a path can carry."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._#") else "_" for c in part[:35]) or "_"
