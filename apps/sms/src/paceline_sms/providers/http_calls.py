"""The code that HTTP providers share: the traced call, the meaning of each status, the log line without the text."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from urllib.request import getproxies

import httpx2

from paceline import __version__, tracing
from paceline_sms.provider import SmsMessage, Unavailable
from paceline_sms.providers.console import on_one_line
from paceline_sms.providers.http_connections import Answer, Connections
from paceline_sms.recipients import masked

USER_AGENT = f"paceline/{__version__}"
THROTTLED = {429, 503}
"""With `Retry-After` the provider works, and limits the rate of calls."""
NO_VERDICT = {401, 403, 404, 405, 407, 408, 409, 425, 429}
"""Besides 3xx and 5xx: the connection is misconfigured or busy, whatever the message is."""

_log = logging.getLogger(__name__)


class HttpCalls:
    """Posts to one address."""

    def __init__(
        self, name: str, url: str, headers: Mapping[str, str], *, timeout: float, log_texts: bool = False
    ) -> None:
        self._name = name
        self._log_texts = log_texts
        address = httpx2.URL(url)
        own = {"host": address.netloc.decode(), "user-agent": USER_AGENT, "accept": "*/*"}
        if address.userinfo:
            own["authorization"] = basic_authorization(address.username, address.password)
        sent = own | {header.lower(): value for header, value in headers.items()}
        self._client: httpx2.AsyncClient | None = None
        self._connections: Connections | None = None
        if address.scheme in getproxies() or "all" in getproxies():
            # Slower, but supports every kind of proxy.
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
            self._client = httpx2.AsyncClient(timeout=timeout, limits=limits, headers=sent)
        else:
            is_tls = address.scheme == "https"
            self._connections = Connections(
                address.raw_host.decode(),
                address.port or (443 if is_tls else 80),
                tls=httpx2.create_ssl_context() if is_tls else None,
                timeout=timeout,
            )
        self._address = address
        self._head = b"POST %b HTTP/1.1\r\nAccept-Encoding: identity\r\n%b" % (address.raw_path, _lines(sent))

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """The answer, if it is a verdict on the message.

        Raises:
            Unavailable: It is no verdict, or there is no answer.
        """
        span = None
        if (origin := tracing.origin()) is not None:
            attributes = {"http.request.method": "POST"}
            span = tracing.begin(f"POST {self._name}", attributes, parent=origin.traceparent, kind="CLIENT")
            headers = {**headers, "traceparent": span.traceparent}
        try:
            answer = await self._exchange(body, headers)
        except (OSError, httpx2.HTTPError) as error:
            if span is not None:
                span.end(failed=type(error).__name__)
            raise Unavailable(f"the provider did not answer: {type(error).__name__}") from error
        status = answer.status
        if span is not None:
            span.end({"http.response.status_code": status}, failed=None if answer.is_success else str(status))
        if status in NO_VERDICT or status >= 500 or 300 <= status < 400:
            retry_after = _seconds(answer.headers.get("retry-after"))
            throttled = status in THROTTLED and retry_after is not None
            raise Unavailable(f"the provider answered {status}", retry_after=retry_after, throttled=throttled)
        return answer

    async def _exchange(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._connections is not None:
            return await self._connections.exchange(
                b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, _lines(headers), len(body), body)
            )
        assert self._client is not None
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        response = await self._client.post(self._address, content=body, headers=encoded)
        return Answer(response.status_code, {**response.headers}, response.content)

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
        if self._connections is not None:
            self._connections.close()
        if self._client is not None:
            await self._client.aclose()


def basic_authorization(user: str, password: str) -> str:
    """The value of `Authorization` for a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _lines(headers: Mapping[str, str]) -> bytes:
    """The headers as a request has them. No value can inject a header: settings are validated when they are read, and a
    message id is printable."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds. Dates are ignored: no provider sends one."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 6):
        return None
    return float(text)
