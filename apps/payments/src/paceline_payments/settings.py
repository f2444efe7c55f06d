"""`PACELINE_PAYMENTS_…`, or `[payments]` in the settings file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from paceline.durations import parse_duration
from paceline.errors import InvalidInput
from paceline.server.setting_sections import ProviderUrl, Section, checked_headers


class PaymentSettings(Section):
    """The payments application."""

    config: str = "default"
    mode: Literal["queue", "direct"] = "queue"
    downstream_url: ProviderUrl | None = Field(None, repr=False)
    """Unset: a simulator inside the process."""
    downstream_token: SecretStr | None = Field(None, min_length=1)
    """Sent as `Authorization: Bearer …`."""
    downstream_token_file: Path | None = None
    """The token, in a file that is read for every call."""
    downstream_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """More headers, as a JSON object."""
    downstream_client_cert: Path | None = None
    downstream_client_key: Path | None = None
    downstream_hmac_key: SecretStr | None = Field(None, min_length=1)
    """Signs the body: `X-Signature: sha256=<hex>`."""
    downstream_timeout: float = Field(10.0, ge=0.05, le=300)
    """Seconds for a whole call."""
    downstream_attempts: int = Field(4, ge=1, le=20)
    """Calls per execution, before the queue retries later."""
    downstream_inquiry_path: str = "/payments/{key}"
    """The path of the downstream's status inquiry."""
    downstream_rejected_statuses: str = ""
    """Statuses that are a verdict on the payment without one in the body, such as `400,422`."""
    downstream_verdict: Literal["body", "status"] = "body"
    """What says that a payment was executed: the body of the answer, `{"status": "EXECUTED"}`, or a 2xx alone."""
    downstream_key_lifetime: str = "PT24H"
    """How long the downstream keeps an `Idempotency-Key`. After that, an attempt with an unknown outcome is not
    repeated before an inquiry. `off`: it keeps none."""
    breaker: Literal["wait", "pause", "off"] = "wait"
    """What happens while the downstream fails: calls wait for a probe, or the kill switch is turned off as well."""
    tps: int = Field(50, ge=1, le=100_000)
    """The downstream's hard limit in any sliding second."""
    burst: int = Field(1, ge=1, le=1000)
    """How many calls may leave at once after a pause; otherwise they are evenly spaced."""
    limit_at: Literal["answer", "departure"] = "answer"
    """Where the limit is counted: at the downstream, whatever the network does, or when calls leave."""
    rules: str | None = None
    """A TOML file with limits, blocked parties, fees and clearing calendars; unset, nothing is refused."""
    release: Literal["off", "four-eyes"] = "off"
    """With `four-eyes`, a second person releases each feed, and confirms each retry of a payment whose outcome is or
    was unknown."""
    screening: ProviderUrl | str | None = Field(None, repr=False)
    """Who screens payments before they are accepted, and again before they are paid: `module:function`, or a URL."""
    worker: Literal["auto", "inline", "worker"] = "auto"
    """Which process executes: the service itself (`inline`), or `paceline worker`. `auto`: the service, unless there is
    Temporal."""
    topic: str = Field("payments-inbound", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    """With Kafka, payments are also read from this topic; rejections are published to the topic of this name and
    `-rejected`."""

    @property
    def four_eyes(self) -> bool:
        return self.release == "four-eyes"

    @field_validator("downstream_headers", mode="before")
    @classmethod
    def _is_an_object(cls, value: object) -> object:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise ValueError('must be a JSON object of texts, as {"X-Tenant": "acme"}') from None
        return value

    @field_validator("downstream_headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        return checked_headers(value, own=("idempotency-key", "content-type", "content-length", "host"))

    @field_validator("downstream_token", "downstream_hmac_key")
    @classmethod
    def _is_one_line(cls, value: SecretStr | None) -> SecretStr | None:
        # A secret from a file ends with the file's last line.
        secret = "" if value is None else value.get_secret_value().rstrip("\r\n")
        if value is not None and not (secret and secret.isascii() and secret.isprintable()):
            raise ValueError("must be printable ASCII, on one line")
        return SecretStr(secret) if secret else None

    @field_validator("downstream_key_lifetime")
    @classmethod
    def _is_a_lifetime(cls, value: str) -> str:
        key_lifetime(value)
        return value

    @field_validator("downstream_rejected_statuses")
    @classmethod
    def _are_statuses(cls, value: str) -> str:
        statuses(value)
        return value


def key_lifetime(text: str) -> float | None:
    """How long the downstream keeps idempotency keys, in seconds; None if it keeps none.

    Raises:
        ValueError: It is neither a duration nor `off`.
    """
    if text == "off":
        return None
    try:
        return parse_duration(text).total_seconds()
    except InvalidInput:
        raise ValueError("must be a duration such as PT24H, or off") from None


def statuses(text: str) -> frozenset[int]:
    """HTTP statuses with commas between.

    Raises:
        ValueError: One of them is no status of a refusal.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch(r"[45]\d\d", word) for word in words):
        raise ValueError("must be statuses from 400 to 599, as 400,402,422")
    return frozenset(map(int, words))
