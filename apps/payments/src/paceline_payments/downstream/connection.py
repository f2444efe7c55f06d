"""The connection to the downstream: address, credentials, signature, timeout."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from paceline.errors import ConfigurationError

TIMEOUT = 10.0
ATTEMPTS = 4
KEY_LIFETIME = 86_400.0
INQUIRY_PATH = "/payments/{key}"
SIGNATURE = "X-Signature"


@dataclass(frozen=True, slots=True)
class DownstreamConnection:
    """The connection to the downstream. Its secrets are not in its repr.

    Raises:
        ConfigurationError: A value can't work; the error names the setting.
    """

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    """Read for every call, so that a rotated token takes effect at once."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_cert: Path | None = None
    client_key: Path | None = None
    hmac_key: str | None = field(default=None, repr=False)
    timeout: float = TIMEOUT
    """Seconds for a whole call, from the request's first byte to the response's last."""
    attempts: int = ATTEMPTS
    inquiry_path: str = INQUIRY_PATH
    rejected_statuses: frozenset[int] = frozenset()
    verdict: Literal["body", "status"] = "body"
    """What says that a payment is executed: the body of a 2xx, or the 2xx alone."""
    key_lifetime: float | None = KEY_LIFETIME
    """Seconds for which the downstream keeps idempotency keys; None if it keeps none."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError("payments.downstream_url", "must begin with http:// or https://")
        if "{key}" not in self.inquiry_path:
            raise ConfigurationError("payments.downstream_inquiry_path", "must hold {key}, as in /payments/{key}")
        if self.token is not None and self.token_file is not None:
            raise ConfigurationError("payments.downstream_token", "give it, or downstream_token_file; not both")
        if self.token_file is not None:
            self._token()
        if self.client_key is not None and self.client_cert is None:
            raise ConfigurationError("payments.downstream_client_key", "needs downstream_client_cert")

    @property
    def payments_url(self) -> str:
        return f"{self.url.rstrip('/')}/payments"

    def inquiry_url(self, key: str) -> str:
        return f"{self.url.rstrip('/')}/{self.inquiry_path.lstrip('/').replace('{key}', quote(key, safe=''))}"

    def request_headers(self, body: bytes) -> dict[str, str]:
        """The headers of a call with this body: the configured ones, the credentials, and the signature.

        Raises:
            ConfigurationError: The token file can't be read.
        """
        headers = dict(self.headers)
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if self.hmac_key is not None:
            digest = hmac.new(self.hmac_key.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE] = f"sha256={digest}"
        return headers

    def ssl_context(self) -> ssl.SSLContext | bool:
        """The TLS context, with the client's certificate, if there is one.

        Raises:
            ConfigurationError: The certificate or its key can't be read.
        """
        if self.client_cert is None:
            return True
        context = ssl.create_default_context()
        try:
            context.load_cert_chain(self.client_cert, self.client_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                "payments.downstream_client_cert", f"can't be read: {error.strerror or type(error).__name__}"
            ) from None
        return context

    def _token(self) -> str | None:
        if self.token_file is None:
            return self.token
        try:
            token = self.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is not plain ASCII"
            raise ConfigurationError("payments.downstream_token_file", f"can't be read: {problem}") from None
        if not token.isprintable():
            raise ConfigurationError("payments.downstream_token_file", "must hold printable ASCII, on one line")
        return token
