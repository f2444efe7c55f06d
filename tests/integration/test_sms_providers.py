"""The providers that speak HTTP, against local servers that speak their protocols."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs

import pytest

from paceline.errors import ConfigurationError, InvalidInput
from paceline.server.settings import Settings
from paceline_sms import Accepted, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.ports import Receipt
from paceline_sms.providers.twilio import TwilioProvider
from paceline_sms.providers.webhook import WebhookProvider
from paceline_sms.service.wiring.sms_providers import open_providers
from tests.integration.recording_server import Server, recording_server


def message(number: int = 1, to: str | None = "+491701234567", user: int = 7) -> SmsMessage:
    return SmsMessage(f"id-{number}", to, f"text {number}", 1, 1, datetime.now(UTC) + timedelta(hours=1), user)


@pytest.fixture
def server() -> Iterator[Server]:
    with recording_server() as known:
        yield known


async def test_a_webhook_is_signed_and_says_who_calls(server: Server) -> None:
    server.answers = [(200, {}, b'{"id": "p-1", "segments": 2}'), (204, {}, b"")]
    webhook = WebhookProvider(server.url, headers={"X-Team": "ops"}, token="t0ken", hmac_key="key")
    assert await webhook.send(message()) == Accepted("p-1", 2)
    assert await webhook.send(message(2, to=None)) == Accepted()
    _, headers, body = server.requests[0]
    assert json.loads(body) == {"userId": 7, "message": "text 1", "messageId": "id-1", "to": "+491701234567"}
    assert headers["authorization"] == "Bearer t0ken"
    assert headers["x-team"] == "ops"
    assert headers["idempotency-key"] == "id-1"
    assert headers["x-signature"] == "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()
    assert "to" not in json.loads(server.requests[1][2])
    await webhook.close()


@pytest.mark.parametrize("status", [400, 410, 413, 422])
async def test_a_verdict_is_about_the_message(server: Server, status: int) -> None:
    server.answers = [(status, {}, b"")]
    webhook = WebhookProvider(server.url)
    assert await webhook.send(message()) == Rejected(f"the provider answered {status}")
    await webhook.close()


async def test_a_webhook_that_says_nothing_of_the_message_leaves_its_outcome_unknown(server: Server) -> None:
    webhook = WebhookProvider(server.url)
    for status, headers, body in ((500, {}, b""), (409, {}, b""), (200, {"Content-Type": "text/html"}, b"log in")):
        server.answers = [(status, headers, body)]
        assert isinstance(await webhook.send(message()), Unknown)
    server.answers = [(429, {}, b"")]
    with pytest.raises(Unavailable) as busy:
        await webhook.send(message())
    assert (busy.value.throttled, busy.value.retry_after) == (True, None)
    server.answers = [(200, {}, b'{"id": "p-1", "price": "0.07", "currency": "EUR"}')]
    assert await webhook.send(message()) == Accepted("p-1", None, Decimal("0.07"), "EUR")
    await webhook.close()


@pytest.mark.parametrize("status", [302, 401, 403, 404, 408, 429, 503])
async def test_what_is_no_verdict_lets_the_message_wait(server: Server, status: int) -> None:
    server.answers = [(status, {"Retry-After": "7"}, b"")]
    webhook = WebhookProvider(server.url)
    with pytest.raises(Unavailable) as away:
        await webhook.send(message())
    assert away.value.retry_after == 7
    assert away.value.throttled == (status in (429, 503))
    await webhook.close()


def test_a_webhooks_receipts_are_signed() -> None:
    webhook = WebhookProvider("http://127.0.0.1:1", hmac_key="key")
    body = b'{"messageId": "id-1", "status": "delivered"}'
    signed = {"x-signature": "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()}
    assert webhook.receipt(signed, "", body) == Receipt("webhook", True, "id-1")
    for headers in ({}, {"x-signature": "sha256=0"}):
        with pytest.raises(InvalidInput, match="X-Signature"):
            webhook.receipt(headers, "", body)
    with pytest.raises(InvalidInput, match="HMAC_KEY"):
        WebhookProvider("http://127.0.0.1:1").receipt(signed, "", body)


def twilio(server: Server, **options: Any) -> TwilioProvider:
    return TwilioProvider("AC1", "secret", "+15005550006", url=server.url, **options)


async def test_twilio_is_spoken_to_as_it_wants(server: Server) -> None:
    created = {"sid": "SM1", "status": "queued", "num_segments": "2", "price": None}
    server.answers = [(201, {}, json.dumps(created).encode())]
    provider = twilio(server, receipts_url="https://me/api/receipts/twilio")
    assert await provider.send(message()) == Accepted("SM1", 2)
    path, headers, body = server.requests[0]
    assert path == "/2010-04-01/Accounts/AC1/Messages.json"
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"AC1:secret"
    assert parse_qs(body.decode()) == {
        "To": ["+491701234567"],
        "From": ["+15005550006"],
        "Body": ["text 1"],
        "StatusCallback": ["https://me/api/receipts/twilio?messageId=id-1"],
    }
    await provider.close()


async def test_twilios_errors_are_distinguished(server: Server) -> None:
    provider = twilio(server)
    server.answers = [(400, {}, b'{"code": 21211, "message": "The To number is not a valid phone number."}')]
    assert await provider.send(message()) == Rejected("Twilio answered 400, error 21211")
    for status, code, is_busy in (
        (401, 20003, False),  # the login
        (400, 20005, False),  # an account that is not active
        (400, 21606, False),  # a sender that can't send SMS
        (400, 21611, True),  # the sender's queue is full
        (429, 20429, True),
        (400, 30001, True),
    ):
        server.answers = [(status, {}, json.dumps({"code": code}).encode())]
        with pytest.raises(Unavailable) as away:
            await provider.send(message())
        assert away.value.throttled is is_busy, code
    server.answers = [(400, {}, b'{"code": 21610, "message": "unsubscribed recipient"}')]
    assert await provider.send(message()) == Rejected("Twilio answered 400, error 21610", opted_out=True)
    server.answers = [(400, {}, b"a proxy's answer")]
    with pytest.raises(Unavailable, match="not Twilio's"):
        await provider.send(message())
    for nothing in (b"", b"{}", b"<html>log in</html>"):
        server.answers = [(200, {}, nothing)]
        assert isinstance(await provider.send(message()), Unknown)
    priced = b'{"sid": "SM1", "num_segments": "1", "price": "-0.0075", "price_unit": "USD"}'
    server.answers = [(201, {}, priced)]
    assert await provider.send(message()) == Accepted("SM1", 1, Decimal("-0.0075"), "USD")
    assert isinstance(await provider.send(message(to=None)), Rejected)
    await provider.close()


def test_twilios_receipts_are_checked_by_its_own_algorithm() -> None:
    provider = TwilioProvider(
        "AC1", "12345", "+15005550006", receipts_url="https://mycompany.com/myapp.php?foo=1&bar=2"
    )
    # The example in Twilio's documentation of its signatures.
    body = b"CallSid=CA1234567890ABCDE&Caller=%2B12349013030&Digits=1234&From=%2B12349013030&To=%2B18005551212"
    with pytest.raises(InvalidInput, match="MessageSid"):  # so the signature was right
        provider.receipt({"x-twilio-signature": "0/KCTR6DLpKmkAf8muzZqo1nDgQ="}, "", body)
    with pytest.raises(InvalidInput, match="X-Twilio-Signature"):
        provider.receipt({"x-twilio-signature": "0/KCTR6DLpKmkAf8muzZqo1nDgQ="}, "", body + b"&a=b")

    def receipt(form: bytes) -> Receipt | None:
        fields = sorted(pair.split("=") for pair in form.decode().split("&"))
        signed = "https://mycompany.com/myapp.php?foo=1&bar=2" + "".join(name + value for name, value in fields)
        signature = base64.b64encode(hmac.new(b"12345", signed.encode(), hashlib.sha1).digest()).decode()
        return provider.receipt({"x-twilio-signature": signature}, "", form)

    assert receipt(b"MessageSid=SM1&MessageStatus=delivered") == Receipt("twilio", True, provider_id="SM1")
    failed = receipt(b"MessageSid=SM1&MessageStatus=undelivered&ErrorCode=30003")
    assert failed == Receipt("twilio", False, provider_id="SM1", reason="error 30003")
    assert receipt(b"MessageSid=SM1&MessageStatus=sent") == Receipt("twilio", None, provider_id="SM1")
    assert receipt(b"MessageSid=SM1&MessageStatus=receiving") is None


def test_twilios_receipt_names_our_message_by_its_url() -> None:
    """So it is found also if the answer with Twilio's id was lost. The signature is over that URL."""
    provider = TwilioProvider("AC1", "12345", "+15005550006", receipts_url="https://me.example/r")
    signed = "https://me.example/r?messageId=id-1" + "MessageSidSM1MessageStatusdelivered"
    signature = base64.b64encode(hmac.new(b"12345", signed.encode(), hashlib.sha1).digest()).decode()
    body, headers = b"MessageSid=SM1&MessageStatus=delivered", {"x-twilio-signature": signature}
    inside = "http://127.0.0.1:8080/api/receipts/twilio"
    assert provider.receipt(headers, f"{inside}?messageId=id-1", body) == Receipt("twilio", True, "id-1", "SM1")
    with pytest.raises(InvalidInput, match="X-Twilio-Signature"):
        provider.receipt(headers, f"{inside}?messageId=id-2", body)


class Scripted:
    def __init__(self, *steps: Exception) -> None:
        self.steps = list(steps)
        self.sent: list[str] = []

    async def send(self, message: SmsMessage) -> Accepted:
        if self.steps:
            raise self.steps.pop(0)
        self.sent.append(message.id)
        return Accepted()


def test_providers_are_named_in_the_settings() -> None:
    sms: dict[str, Any] = {
        "providers": "twilio, backup=tests.integration.test_sms_providers:Scripted,console",
        "provider_rates": "twilio=10,backup=1",
        "twilio_account_sid": "AC1",
        "twilio_auth_token": "secret",
        "twilio_from": "+15005550006",
    }
    chain = open_providers(Settings.load(sms=sms))
    assert [entry.name for entry in chain.providers] == ["twilio", "backup", "console"]
    assert [entry.downstream.name for entry in chain.providers] == ["sms-twilio", "sms-backup", "sms-console"]
    assert [str(entry.downstream._rate) for entry in chain.providers] == ["10/second", "1/second", "None"]
    assert isinstance(chain.get("backup"), Scripted)
    unnamed = {"providers": "tests.integration.test_sms_providers:Scripted", "provider_rates": "test_sms_providers=5"}
    (entry,) = open_providers(Settings.load(sms=sms | unnamed)).providers
    assert (entry.name, type(entry.provider)) == ("test_sms_providers", Scripted)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"providers": "smsc"}, "none of webhook, twilio, smpp, console"),
        ({"providers": "a=b"}, "package.module:attribute"),
        ({"providers": "a=no_such_module:b"}, "can't be imported"),
        ({"providers": "a=json:dumps"}, "can't be made"),
        ({"providers": "a=json:decoder"}, "has no method send"),
        ({"providers": "webhook"}, "PACELINE_SMS_WEBHOOK_URL"),
        ({"providers": "twilio", "twilio_from": None}, "PACELINE_SMS_TWILIO_FROM"),
        ({"provider_rates": "nobody=1"}, "not among the providers"),
        ({"providers": "console,console"}, "named before"),
        ({"providers": "json:a,json:b"}, "json is named before; write another one as name=package.module:attribute"),
        ({"providers": ":b"}, "':b' names no provider"),
    ]
    for changes, problem in wrong:
        with pytest.raises(ConfigurationError, match=problem):
            open_providers(Settings.load(sms=sms | {"provider_rates": ""} | changes))
