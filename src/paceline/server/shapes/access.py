"""Tokens, sessions and the audit on the wire."""

from __future__ import annotations

import json
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, WithJsonSchema

from paceline.server.access.model import ANYONE
from paceline.server.access.ports import Session
from paceline.server.access.sessions import Login, session_id
from paceline.server.shapes.members import INSTANT
from paceline.server.shapes.shape import Expects, Instant, Shape

LONGEST_TOKEN = 512
Scopes = Annotated[list[str], BeforeValidator(sorted)]
Names = Annotated[
    list[str],
    BeforeValidator(lambda names: names if isinstance(names, list) else [*names.patterns]),
    Field(description="The names, or how they begin (`team-a-*`), that the token is bound to; empty for all."),
]


class LoginRequest(Shape):
    """A token, in exchange for a session."""

    token: Annotated[
        str,
        Field(min_length=1, max_length=LONGEST_TOKEN, json_schema_extra={"format": "password"}),
        Expects(f"a text of 1 to {LONGEST_TOKEN} characters"),
    ]


class SessionShown(Shape):
    """The user of the console."""

    login_required: bool
    name: str | None
    scopes: Scopes
    names: Names
    expires_at: Instant | None
    openid: Annotated[bool, Field(description="Whether `/console/oidc/login` logs in with the organisation's account.")]

    @classmethod
    def of_login(cls, login: Login | None, *, openid: bool = False) -> Self:
        if login is None:
            return cls(login_required=True, name=None, scopes=[], names=[], expires_at=None, openid=openid)
        return cls.of(login.caller, login, login_required=login.caller is not ANYONE, openid=openid)


class OpenSession(Shape):
    """A login to the console that has not ended."""

    id: Annotated[str, Field(description="Names the session; it opens nothing.")]
    caller: Annotated[str, Field(description="A token's name, or `oidc:` and a person.")]
    opened_at: Annotated[Instant, WithJsonSchema(INSTANT)]
    expires_at: Annotated[Instant, WithJsonSchema(INSTANT)]
    address: str | None
    groups: Annotated[list[str] | None, Field(description="Those of a person, as the provider last reported them.")]

    @classmethod
    def of_session(cls, session: Session) -> Self:
        groups = None if session.member_of is None else json.loads(session.member_of)
        return cls.of(session, id=session_id(session), groups=groups)


class TokenShown(Shape):
    """A token, without its secret."""

    name: str
    scopes: Scopes
    names: Names
    rate: str | None
    created_at: Instant | None
    revoked_at: Instant | None
    expires_at: Instant | None


class TokenCreated(TokenShown):
    """A new token, with its secret."""

    token: str


class ChangeShown(Shape):
    """A requested change."""

    id: int
    at: Annotated[Instant, WithJsonSchema(INSTANT)]
    caller: Annotated[
        str, Field(description="A token's name, `anyone` where none is required, or `cli:` and who ran a command.")
    ]
    method: Annotated[str, Field(description="`CLI` for a command.")]
    path: Annotated[str, Field(description="Or the command.")]
    request_id: str
    status: Annotated[int | None, Field(description="null: under way, or its process died.")]
    detail: Annotated[
        str | None,
        Field(
            description="The content of the request: the first thousand characters of the body, if it has one, or of "
            "a command's options."
        ),
    ]
    address: Annotated[str | None, Field(description="Where it came from; null for a command.")]
