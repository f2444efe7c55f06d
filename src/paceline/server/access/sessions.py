"""Sessions: a token is sent once, at login; then a random session secret replaces it, until either expires.

The store keeps a digest of that secret, and a seal made of the secret and the token. A reader of the store can neither
hijack a session nor learn anything about a token.

People log in by an identity provider. What they may do is decided at each request, by the settings of now and the
groups that the provider last reported; it is asked again at intervals.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from paceline.dispatch.encryption import Encryption
from paceline.errors import NotFound, PacelineError, StoreUnavailable
from paceline.server.access.authenticator import Authenticator
from paceline.server.access.model import ANYONE, Caller, Person, Token, digest
from paceline.server.access.ports import NewSession, Session, SessionStore

log = logging.getLogger(__name__)

UNCHECKED = timedelta(hours=1)
"""The longest session of a person of whom the provider can't be asked again: it gave no refresh token."""
ID_LENGTH = 12
"""Characters of a session's digest that name it to operators."""


class PeopleProvider(Protocol):
    """Who people are, by an identity provider."""

    def caller(self, name: str, groups: Iterable[str]) -> Caller:
        """What the person of this name, a member of these groups, may do by the settings of now."""
        ...

    async def renewed(self, known: str, renewal: str) -> Person:
        """The person named `known` as the provider describes them now. Raises `PacelineError` if it does not."""
        ...


class Login(NamedTuple):
    """An open login."""

    caller: Caller
    expires_at: datetime | None
    """None where no token is required."""
    secret: str = ""
    """The session's secret; returned once, when the session opens."""


class Sessions:
    """Opens, finds and closes sessions. All state is in the store: any process knows every session."""

    def __init__(
        self,
        store: SessionStore,
        authenticator: Authenticator,
        lifetime: timedelta,
        people: PeopleProvider | None = None,
        *,
        check_every: timedelta = timedelta(minutes=1),
    ) -> None:
        """`check_every` is how long the groups that `people` reported are believed."""
        self._store = store
        self._authenticator = authenticator
        self._lifetime = lifetime
        self._people = people
        self._check_every = check_every
        self._key: bytes | None = None

    async def open(self, token_secret: str, address: str | None = None) -> Login | None:
        """Opens a session for the token with this secret; None if no valid token has it."""
        caller = await self._authenticator.caller(token_secret)
        if caller is ANYONE:
            return Login(caller, None)
        token = (await self._authenticator.keyring()).token(token_secret)
        if caller is None or token is None:
            return None
        secret = _new_secret(await self.key())
        session = await self._store.open(
            NewSession(digest(secret), token.name, _seal(secret, token), self._lifetime, address)
        )
        return Login(caller, session.expires_at, secret)

    async def open_person(self, person: Person, address: str | None = None) -> Login:
        """Opens a session for a person whom an identity provider has authenticated."""
        secret, groups = _new_secret(await self.key()), json.dumps(person.groups)
        lifetime = self._lifetime if person.renewal is not None else min(self._lifetime, UNCHECKED)
        session = await self._store.open(
            NewSession(
                digest(secret),
                person.name,
                _person_seal(secret, person.name, groups),
                lifetime,
                address,
                groups,
                None if person.renewal is None else _encryption(secret).encrypt(person.renewal, person.name),
            )
        )
        return Login(self._caller(person.name, groups), session.expires_at, secret)

    async def find(self, secret: str) -> Login | None:
        """The login with this session's secret; None if there is none.

        Tokens are read from the store each time: the session of a revoked token ends with its next request, not seconds
        later. A forged secret costs no read.
        """
        await self._authenticator.keyring()
        if self._authenticator.is_open:
            return Login(ANYONE, None)
        if not secret or not _is_ours(secret, await self.key()):
            return None
        keyring = await self._authenticator.keyring(max_age=0)
        session = await self._store.find(digest(secret))
        if session is not None and session.member_of is not None:
            return await self._find_person(secret, session, session.member_of)
        token = keyring.named(session.caller) if session is not None else None
        if session is None or token is None or not hmac.compare_digest(session.seal, _seal(secret, token)):
            return None
        return Login(token.caller, session.expires_at)

    async def _find_person(self, secret: str, session: Session, groups: str) -> Login | None:
        if self._people is None or not hmac.compare_digest(session.seal, _person_seal(secret, session.caller, groups)):
            return None
        if session.renewal is not None and await self._store.claim_check(session, self._check_every):
            try:
                renewal = _encryption(secret).decrypt(session.renewal, session.caller)
                person = await self._people.renewed(session.caller, renewal)
            except StoreUnavailable as error:
                log.warning("the groups of %s stay as they were reported last: %s", session.caller, error)
            except PacelineError as error:
                log.warning("the session of %s ends: %s", session.caller, error)
                await self._store.close(session.digest)
                return None
            else:
                groups = json.dumps(person.groups)
                renewal = _encryption(secret).encrypt(person.renewal or renewal, session.caller)
                await self._store.renew(session.digest, _person_seal(secret, session.caller, groups), groups, renewal)
        caller = self._caller(session.caller, groups)
        return Login(caller, session.expires_at) if caller.scopes else None

    def _caller(self, name: str, groups: str) -> Caller:
        return Caller(name, frozenset()) if self._people is None else self._people.caller(name, json.loads(groups))

    async def all(self) -> list[Session]:
        """The open sessions, the newest first."""
        return await self._store.all()

    async def end(self, chosen: str) -> list[Session]:
        """Ends one session, by its id, or all of a token or a person, by name; everywhere, with their next request.

        Raises:
            NotFound: there is none.
        """
        ending = [each for each in await self._store.all() if chosen in (each.caller, session_id(each))]
        if not ending:
            raise NotFound("session", chosen)
        for each in ending:
            await self._store.close(each.digest)
        return ending

    async def close(self, secret: str) -> None:
        """Ends the session, everywhere."""
        if _is_ours(secret, await self.key()):
            await self._store.close(digest(secret))

    async def key(self) -> bytes:
        """The key that authenticates cookies."""
        if self._key is None:
            self._key = await self._store.key()
        return self._key


def _new_secret(key: bytes) -> str:
    """128 random bits, and their authentication code under the shared key: a forged secret fails without a read."""
    random = secrets.token_bytes(16)
    return base64.urlsafe_b64encode(random + _code(random, key)).rstrip(b"=").decode()


def _is_ours(secret: str, key: bytes) -> bool:
    try:
        decoded = base64.urlsafe_b64decode(secret + "=")
    except ValueError:
        return False
    return len(decoded) == 32 and hmac.compare_digest(decoded[16:], _code(decoded[:16], key))


def _code(random: bytes, key: bytes) -> bytes:
    return hmac.new(key, random, hashlib.sha256).digest()[:16]


def session_id(session: Session) -> str:
    """The name of a session for operators. It opens nothing."""
    return session.digest[:ID_LENGTH]


def _person_seal(secret: str, name: str, groups: str) -> str:
    """Ties groups to the session's secret: a writer to the store can't add groups to a session."""
    return hmac.new(secret.encode(), f"{name}\n{groups}".encode(), hashlib.sha256).hexdigest()


def _encryption(secret: str) -> Encryption:
    """Under a key that no store has."""
    key = hmac.new(secret.encode(), b"renewal", hashlib.sha256).digest()
    return Encryption([base64.b64encode(key).decode()])


def _seal(secret: str, token: Token) -> str:
    """Differs when a token of the same name, from the settings, has another secret now."""
    return hmac.new(secret.encode(), token.digest.encode(), hashlib.sha256).hexdigest()
