"""Access control of gRPC: the same tokens and limits as over HTTP."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import grpc

from paceline.errors import PacelineError
from paceline.server.access.authenticator import Authenticator
from paceline.server.access.model import ANYONE, Scope
from paceline.server.http.ingress import Ingress
from paceline.server.http.problem import Problem


class GrpcAccess:
    """Admits a call if its bearer token has `scope`, or if there are no tokens at all.

    Failed attempts count against the address that made them, together with those over HTTP.
    """

    def __init__(self, authenticator: Authenticator, ingress: Ingress, scope: Scope = Scope.ASSIGN) -> None:
        self._authenticator = authenticator
        self._ingress = ingress
        self._scope = scope

    async def admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Ends the call with `UNAUTHENTICATED`, `PERMISSION_DENIED` or `RESOURCE_EXHAUSTED` unless it is admitted."""
        try:
            caller = await self._authenticator.caller(_bearer_token(context))
        except PacelineError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"tokens can't be read: {type(error).__name__}")
        scope = {"type": "grpc", "path": "/grpc", "headers": (), "client": _client(context.peer())}
        try:
            if caller is None:
                if refusal := await self._ingress.record_failure(scope):
                    raise refusal
                await context.abort(
                    grpc.StatusCode.UNAUTHENTICATED, "send the metadata authorization: Bearer and a valid token"
                )
            await self._ingress.admit(scope, caller)
        except Problem:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests; retry later")
        if caller is not ANYONE and not caller.may(self._scope):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"this needs a token with the scope {self._scope.value}"
            )
        if caller.names:
            detail = str(caller.names.refusal("descriptors are not divided by names"))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, detail)


def _bearer_token(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                return token.strip()
    return ""


@lru_cache(1024)
def _client(peer: str) -> tuple[str, int] | None:
    """The address of a peer such as `ipv4:192.0.2.7:53210`; `None` of a socket file."""
    family, _, address = peer.partition(":")
    host, _, port = unquote(address).rpartition(":")
    return (host.strip("[]"), int(port)) if family.startswith("ip") and port.isdigit() else None
