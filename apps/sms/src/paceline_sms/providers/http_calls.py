"""The code that HTTP providers share: the traced call, what an answer proves, the log line without the text."""

from __future__ import annotations

import base64
import json
import logging
import ssl
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp

from paceline import __version__, tracing
from paceline_sms.provider import SmsMessage, Unavailable, Unknown
from paceline_sms.providers.console import on_one_line
from paceline_sms.providers.verdicts import Meaning, meaning_of
from paceline_sms.recipients import masked

USER_AGENT = f"paceline/{__version__}"
IDLE_SECONDS = 4.0
"""How long an unused connection is kept. Many servers close theirs after 5 seconds or more."""
MAX_ANSWER_BYTES = 1_000_000

_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_page(self) -> bool:
        """Whether it is a page for people, as of a proxy or a login, and so says nothing of a message."""
        return "html" in self.headers.get("content-type", "").lower() or self.body.lstrip()[:1] == b"<"

    def document(self) -> dict[str, Any]:
        """The JSON object in the body; empty if there is none."""
        try:
            document = json.loads(self.body) if self.body else {}
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}


class HttpCalls:
    """Posts to one address."""

    def __init__(
        self, name: str, url: str, headers: Mapping[str, str], *, timeout: float, log_texts: bool = False
    ) -> None:
        self._name = name
        self._url = url
        self._headers = {"user-agent": USER_AGENT} | {header.lower(): value for header, value in headers.items()}
        self._timeout = timeout
        self._log_texts = log_texts
        self._session: aiohttp.ClientSession | None = None
        """Opened by the first call, on its event loop."""

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer | Unknown:
        """The answer, if it is a verdict on the message; `Unknown` if the request may have been processed.

        Raises:
            Unavailable: The request was certainly not processed.
        """
        span = None
        if (origin := tracing.origin()) is not None:
            attributes = {"http.request.method": "POST"}
            span = tracing.begin(f"POST {self._name}", attributes, parent=origin.traceparent, kind="CLIENT")
            headers = {**headers, "traceparent": span.traceparent}
        request = SimpleNamespace(left=False)
        try:
            answer = await self._exchange(body, headers, request)
        except (OSError, aiohttp.ClientError) as error:
            if span is not None:
                span.end(failed=type(error).__name__)
            if request.left:
                return Unknown(f"the connection ended before the answer: {type(error).__name__}")
            raise Unavailable(f"the provider could not be reached: {type(error).__name__}") from error
        status = answer.status
        if span is not None:
            span.end({"http.response.status_code": status}, failed=None if answer.is_success else str(status))
        retry_after = _seconds(answer.headers.get("retry-after"))
        meaning = meaning_of(status, has_retry_after=retry_after is not None)
        if meaning is Meaning.VERDICT and answer.is_success and answer.is_page:
            return Unknown(f"the provider answered {status} with a page instead of a result")
        if meaning is Meaning.UNKNOWN:
            return Unknown(f"the provider answered {status}")
        if meaning is Meaning.VERDICT:
            return answer
        throttled = meaning is Meaning.BUSY
        raise Unavailable(f"the provider answered {status}", retry_after=retry_after, throttled=throttled)

    async def _exchange(self, body: bytes, headers: Mapping[str, str], request: SimpleNamespace) -> Answer:
        if self._session is None:
            self._session = self._opened()
        posting = self._session.post(
            self._url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=request
        )
        async with posting as response:
            answer = bytearray()
            async for part in response.content.iter_any():
                answer += part
                if len(answer) > MAX_ANSWER_BYTES:
                    raise aiohttp.ClientPayloadError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, bytes(answer))

    def _opened(self) -> aiohttp.ClientSession:
        phases = aiohttp.TraceConfig()
        phases.on_request_headers_sent.append(_has_left)
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=ssl.create_default_context()),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[phases],
            trust_env=True,  # for proxies
        )

    def log_sent(self, message: SmsMessage) -> None:
        """Logs a sent message; its text only if the settings allow it."""
        ids = {"user_id": message.user_id, "message_id": message.id}
        if self._log_texts:
            _log.info("SMS Sent: %d: %s", message.user_id, on_one_line(message.text), extra=ids)
        else:
            _log.info(
                "SMS Sent: %d: %s to %s, %d segments",
                message.user_id,
                message.id,
                masked(message.to),
                message.segments,
                extra=ids,
            )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _has_left(_session: aiohttp.ClientSession, context: SimpleNamespace, _parameters: object) -> None:
    """From now on a failure does not prove that the request was not processed."""
    context.trace_request_ctx.left = True


def basic_authorization(user: str, password: str) -> str:
    """The value of `Authorization` for a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def price_of(value: object) -> Decimal | None:
    """The price in an answer; None if there is none. Twilio's are negative: what the account is charged."""
    try:
        price = Decimal(str(value)) if isinstance(value, str | int | float) else None
    except InvalidOperation:
        return None
    return price if price is not None and price.is_finite() else None


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds. Dates are ignored: no provider sends one."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 6):
        return None
    return float(text)
