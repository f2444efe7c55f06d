"""What providers call: with receipts of our messages, and with messages that people sent to us."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response

from paceline.errors import InvalidInput, NotFound
from paceline.server.http.body import read
from paceline.server.http.parameters import api_router, path
from paceline.server.http.problem import Problem, documented
from paceline_sms.inbound import Inbound, Reply, received
from paceline_sms.receipts import EarlyReceipt
from paceline_sms.service.http.notifications import name_outages
from paceline_sms.service.http.parts import gateway_of

MAX_CALLBACK_BYTES = 64 * 1024
PROVIDER = path("provider", {"type": "string", "minLength": 1, "maxLength": 64})
SIGNED: dict[str, Any] = {
    "parameters": [PROVIDER],
    "requestBody": {"required": True, "content": {"*/*": {"schema": {"type": "string"}}}},
}
REPLY = {
    "description": "The reply, in the provider's own form.",
    "content": {"application/json": {"schema": {"type": "object"}}, "application/xml": {"schema": {"type": "string"}}},
}

router = api_router("/api", "notifications")


@router.post(
    "/receipts/{provider}",
    summary="Take a provider's delivery receipt",
    status_code=204,
    responses=documented(400, 403, 404, 413, 503),
    openapi_extra=SIGNED,
)
async def receipt(request: Request) -> Response:
    """For providers, which sign it; no token is needed. 403 if the signature is wrong. A receipt by the provider's id
    may come before the response with that id: it is kept for some minutes."""
    gateway, name = gateway_of(request), request.path_params["provider"]
    known = await _read_signed(request, _reader(request, "receipt"))
    if known is not None:
        known = known._replace(provider=name)
        messages = gateway.messages
        with name_outages():
            seconds = await messages.receive(known)
            is_final = known.delivered is not None
            if seconds is None and is_final and not await messages.keep_receipt(EarlyReceipt(known)):
                raise NotFound("message", known.message_id or known.provider_id or "")
        if seconds is not None and seconds >= 0:
            gateway.observer.receipt(name, known.delivered, seconds)
    return Response(status_code=204)


@router.post(
    "/inbound/{provider}",
    summary="Take a message that somebody sent to us",
    responses={200: REPLY, **documented(400, 403, 404, 413, 503)},
    openapi_extra=SIGNED,
)
async def inbound(request: Request) -> Response:
    """For providers, which sign it; no token is needed. 403 if the signature is wrong. STOP enters the sender's number
    as an opt-out, START removes it, and both are answered, as is HELP. Other messages are noted, without their text,
    and get an empty reply. A message that is delivered again gets the same reply and changes nothing."""
    gateway, name = gateway_of(request), request.path_params["provider"]
    message: Inbound = await _read_signed(request, _reader(request, "inbound"))
    with name_outages():
        text = await received(gateway.messages, gateway.inbound_words, name, message)
    render: Callable[[str], Reply] = getattr(gateway.providers.get(name), "reply", reply_as_json)
    reply = render(text)
    return Response(reply.body, media_type=reply.media_type)


def reply_as_json(text: str) -> Reply:
    """`{"reply": text}`; null if there is none."""
    return Reply("application/json", json.dumps({"reply": text or None}).encode())


def _reader(request: Request, method: str) -> Callable[..., Any]:
    """The provider's own method.

    Raises:
        NotFound: There is no such provider, or it takes no such calls.
    """
    name = request.path_params["provider"]
    read_call = getattr(gateway_of(request).providers.get(name), method, None)
    if read_call is None:
        raise NotFound("provider", name[:64])
    reader: Callable[..., Any] = read_call
    return reader


async def _read_signed(request: Request, read_call: Callable[..., Any]) -> Any:
    """What the provider's method reads from the request.

    Raises:
        Problem: 403, the signature is wrong.
        InvalidInput: The content is.
    """
    body = await read(request.receive, MAX_CALLBACK_BYTES)
    try:
        return read_call({key.lower(): value for key, value in request.headers.items()}, str(request.url), body)
    except InvalidInput as error:
        if "signature" in error.field.lower():
            raise Problem(403, "bad-signature", "Forbidden", str(error), field=error.field) from error
        raise
