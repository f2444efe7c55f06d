"""`PACELINE_SMS_…`, or `[sms]` in the settings file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from paceline.errors import ConfigurationError, InvalidInput
from paceline.server.setting_sections import JsonLists, JsonObject, ProviderUrl, Section, checked_headers
from paceline_sms.inbound import InboundWords
from paceline_sms.model import checked_expiry
from paceline_sms.quiet_hours import QuietHours
from paceline_sms.senders import Senders
from paceline_sms.templates import Templates


class SmsSettings(Section):
    """The notification application."""

    providers: str = ""
    """The providers, in order of preference, with commas: `webhook`, `twilio`, `smpp`, `console`,
    `name=package.module:attribute`, or `package.module:attribute`, whose name is `module`.
    Empty: the webhook, if its URL is set, else the console."""
    provider_rates: str = Field("", pattern=r"^(\s*[\w.-]+=\d{1,6}\s*(,|$))*$")
    """Messages per second that a provider accepts: `twilio=10,backup=1`, over all senders."""
    on_unknown: str = Field("", pattern=r"^(\s*([\w.-]+=)?(hold|resend|fail)\s*(,|$))*$")
    """What follows when nobody knows whether a provider took a message: `hold` it for a receipt, `resend` it to the
    same provider, or `fail` it. For all, or by provider: `twilio=hold,backup=resend`. Empty: hold, unless a provider of
    your own says otherwise."""
    hold_for: str = "PT24H"
    """How long such a message waits for a receipt before it is a dead letter."""
    log_texts: bool = False
    """Whether texts of messages may be logged; the console provider, which exists to show them, always logs them."""
    webhook_url: ProviderUrl | None = Field(None, repr=False)
    """Unset: messages are written to the log."""
    webhook_headers: JsonObject = Field(default_factory=dict, repr=False)
    webhook_token: SecretStr | None = None
    webhook_hmac_key: SecretStr | None = None
    twilio_url: ProviderUrl = "https://api.twilio.com"
    twilio_account_sid: str | None = None
    twilio_auth_token: SecretStr | None = None
    twilio_from: str | None = None
    """A number, or the SID of a messaging service."""
    twilio_receipts_url: ProviderUrl | None = None
    """The URL for Twilio's delivery reports: the public address of `/api/receipts/twilio`."""
    twilio_inbound_url: ProviderUrl | None = None
    """The URL that Twilio calls with messages of people: the public address of `/api/inbound/twilio`. Unset: the
    address that the request came to."""
    smpp_url: str | None = Field(None, pattern=r"^smpps?://[^/@\s]+$")
    """`smpp://host:port` of an SMSC; `smpps://` with TLS. Unset: there is none."""
    smpp_system_id: str | None = Field(None, max_length=15)
    smpp_password: SecretStr | None = None
    smpp_system_type: str = Field("", max_length=12)
    smpp_from: str = Field("", pattern=r"^(\+?[0-9]{1,20}|[A-Za-z0-9 ._-]{1,11})?$")
    """A number with `+`, a short code or a name of up to 11 characters. Empty: the SMSC's default."""
    smpp_window: int = Field(10, ge=1, le=1000)
    """Messages of a process that the SMSC has not answered yet."""
    smpp_enquire_seconds: float = Field(30.0, ge=1, le=3600)
    """How often the SMSC is asked whether it is there."""
    smpp_hexadecimal_ids: bool = False
    """The SMSC gives its ids in hexadecimal, and names them in receipts as decimal numbers."""
    inbound_words: JsonLists = Field(default_factory=dict)
    """Words that people send, a JSON object of lists: `{"stop": ["STOP", "BAJA"]}`. A list replaces the default words
    of `stop`, `start` or `help`."""
    inbound_replies: JsonObject = Field(default_factory=dict)
    """What they are answered, a JSON object of texts: `{"help": "Call +49 30 1234"}`. Empty texts answer nothing."""
    sender: Literal["auto", "inline", "worker"] = "auto"
    """Which process sends: the service itself (`inline`), or `paceline worker sender`. `auto`: the service, unless
    there is Kafka."""
    topic: str = Field("sms-outbound", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    """Dead letters go to the topic of this name and `-dlt`."""
    events_topic: str = Field("notification-events", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    opensearch_url: ProviderUrl | None = Field(None, repr=False)
    """Attempt events are also indexed there, by OpenSearch's bulk requests. Unset: nowhere."""
    opensearch_index: str = Field("notification-events", pattern=r"^[a-z0-9][a-z0-9._-]{0,120}$")
    opensearch_headers: JsonObject = Field(default_factory=dict, repr=False)
    """Sent with each bulk request, for example `{"authorization": "Basic …"}`."""
    kafka_delivery_seconds: float = Field(3.0, ge=0.1, le=20)
    """How long Kafka may take to acknowledge a message before the caller gets 503."""
    redis_timeout_seconds: float = Field(0.5, gt=0, le=60)
    """How long Redis may take before the SQL path decides."""
    timeout_seconds: float = Field(10.0, gt=0, le=300)
    """How long a provider may take to answer."""
    concurrency: int = Field(64, ge=1, le=1000)
    """Calls of one sender in flight."""
    lease_seconds: float = Field(10.0, ge=1, le=600)
    """How long the messages of a dead sender wait for another one."""
    expires_in: str = "PT24H"
    """How long a message that names no expiry may wait."""
    status_url: ProviderUrl | None = Field(None, repr=False)
    """What becomes of each message is posted there. Unset: nowhere."""
    status_hmac_key: SecretStr | None = None
    """It signs them, and is needed with `status_url`."""
    senders: JsonLists = Field(default_factory=dict)
    """Who messages are from, a JSON object of lists by what a number begins with: `{"+49": ["Shop"], "+": ["+1500…"]}`.
    A recipient always gets the same one. Without any, the provider's own."""
    templates: JsonObject = Field(default_factory=dict)
    """Texts with variables, a JSON object by name: `{"code": "Your code is {code}"}`."""
    quiet_hours: str | None = None
    """`21:00-08:00`: when messages wait, by the recipient's clock, unless their priority is high."""

    @field_validator("webhook_headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        own = ("idempotency-key", "x-signature", "content-length", "transfer-encoding", "connection", "accept-encoding")
        return checked_headers(value, own=own)

    @field_validator("expires_in", "hold_for")
    @classmethod
    def _is_an_expiry(cls, value: str) -> str:
        try:
            checked_expiry(value)
        except InvalidInput as error:
            raise ValueError(error.problem) from None
        return value

    @field_validator("senders")
    @classmethod
    def _are_senders(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        try:
            Senders(value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value

    @field_validator("templates")
    @classmethod
    def _are_templates(cls, value: dict[str, str]) -> dict[str, str]:
        try:
            Templates(value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value

    @field_validator("inbound_words")
    @classmethod
    def _are_words(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        try:
            InboundWords(words=value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value

    @field_validator("inbound_replies")
    @classmethod
    def _are_replies(cls, value: dict[str, str]) -> dict[str, str]:
        try:
            InboundWords(replies=value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value

    @field_validator("quiet_hours")
    @classmethod
    def _are_hours(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                QuietHours(value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value
