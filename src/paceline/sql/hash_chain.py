"""Links of a hash chain: each covers its contents and the link before, so that changed, removed and inserted rows are
detected. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

GENESIS = "0" * 64
"""The link before the first one."""


def link_hash(before: str, place: int, contents: Sequence[object], key: bytes = b"") -> str:
    """The hash of a link: under the key, if there is one."""
    text = json.dumps([before, place, *contents], ensure_ascii=True, separators=(",", ":")).encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest() if key else hashlib.sha256(text).hexdigest()
