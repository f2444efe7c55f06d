"""What became of a call: done, refused, again, pending, or unknown; and what earlier attempts change about it. Pure.

An answer proves something only if it says so. A time-out after the first byte, half an answer, a proxy's page and an
empty answer where a body was promised are unknown: never done, and never refused.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple, Self

from paceline.downstream.signals.standard import pause_of, retry_after
from paceline.errors import ConfigurationError

MAX_REASON = 300
MAX_REFERENCE = 255
MAX_BODY = 4 << 20
"""Bytes of a body that are read as JSON."""
DEEPEST = 8
"""Steps of the path to a member of the body."""


class Outcome(StrEnum):
    """How an attempt ended, or what an inquiry found."""

    DONE = "done"
    REFUSED = "refused"
    """Final: another attempt would be refused, too."""
    AGAIN = "again"
    """Nothing was executed: another attempt may follow. As an inquiry's result: never seen."""
    UNKNOWN = "unknown"
    """It may have been executed, and nothing proves whether it was."""
    PENDING = "pending"
    """The other side has it, and has not decided yet: inquire until it has."""


class Fault(StrEnum):
    """What a failed attempt says of the other side, for the breaker."""

    DOWNSTREAM = "downstream"
    """The other side is in trouble."""
    CONNECTION = "connection"
    """Address, credentials or certificate are wrong: the work is not charged an attempt, and the breaker opens."""


class Verdict(NamedTuple):
    """The outcome of an attempt, and why.

    Verdict(Outcome.AGAIN, "too many requests", after=2.0)
    """

    outcome: Outcome
    reason: str = ""
    after: float | None = None
    """Seconds until the next attempt or inquiry, if the other side said so."""
    reference: str | None = None
    """The other side's name for what it did."""
    fault: Fault | None = None


def is_in_doubt(earlier: Iterable[Outcome]) -> bool:
    """Whether an earlier attempt may have been executed. An inquiry's result ends the doubt: it begins a new
    history."""
    return any(outcome in (Outcome.UNKNOWN, Outcome.PENDING) for outcome in earlier)


def after_history(verdict: Verdict, earlier: Iterable[Outcome]) -> Verdict:
    """The verdict on the work, given the earlier attempts since the last inquiry.

    A refusal proves nothing after an attempt that may have been executed: what was refused may be the repetition. It is
    unknown until the inquiry decides.
    """
    if verdict.outcome is Outcome.REFUSED and is_in_doubt(earlier):
        return verdict._replace(
            outcome=Outcome.UNKNOWN, reason=_short(f"refused after an attempt of unknown outcome: {verdict.reason}")
        )
    return verdict


def after_inquiry(found: Verdict | None) -> Verdict:
    """The verdict on the work after an inquiry, which needs no history. None, or a fault of the other side, is no
    answer: nobody knows."""
    if found is None or found.fault is not None:
        return Verdict(Outcome.UNKNOWN, "the inquiry was not answered" if found is None else found.reason)
    return found


def verdict_of_error(error: BaseException, *, has_left: bool) -> Verdict:
    """The verdict on an attempt that ended with an error instead of an answer. Only an attempt whose first byte was
    not sent is sure to have done nothing; `has_left` must be true if that is not known."""
    reason = _short(str(error) or type(error).__name__)
    if any_cause(error, (ssl.SSLCertVerificationError, socket.gaierror)):
        return Verdict(Outcome.AGAIN, reason, fault=Fault.CONNECTION)
    if not has_left or any_cause(error, (ConnectionRefusedError,)):
        return Verdict(Outcome.AGAIN, reason, fault=Fault.DOWNSTREAM)
    return Verdict(Outcome.UNKNOWN, reason, fault=Fault.DOWNSTREAM)


def any_cause(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an error, or what it was raised from, is of these kinds: clients wrap the errors of the connection."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kinds):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Answer(NamedTuple):
    """What a verdict is read from."""

    status: int
    body: Any = None
    """The body's JSON; None if it is none."""
    header: Callable[[str], str | None] = lambda name: None
    """A field by its name."""
    text: str = ""
    """The beginning of a body that is no JSON."""
    is_whole: bool = True
    """False if it broke off."""
    is_empty: bool = False
    """It has no body."""
    content: bytes = b""
    """The body as it was received, decompressed."""

    @classmethod
    def of(
        cls, status: int, content: bytes, header: Callable[[str], str | None] = lambda name: None, *, whole: bool = True
    ) -> Self:
        """An answer whose body is still bytes."""
        body = _json_of(content)
        text = "" if body is not None else _short(content[: 4 * MAX_REASON].decode("utf-8", "replace"))
        return cls(status, body, header, text, whole, not content, content)

    def events(self) -> Iterator[Any]:
        """The JSON documents of a stream of server-sent events (`data: {…}`), in order; nothing of others."""
        for line in self.content.splitlines():
            if line.startswith(b"data:") and (document := _json_of(line[5:])) is not None:
                yield document


AGAIN_STATUSES = frozenset({408, 425, 429})
"""By their meaning, nothing was executed."""
REASONED_STATUSES = frozenset({400, 402, 403, 422})
"""Refusals, if the body gives a reason. Without one, they may be those of a proxy."""
UNPROVEN_STATUSES = frozenset({400, 402, 409, 422})
UNAVAILABLE = 503
NO_CONTENT = 204
NOT_FOUND = 404


class JsonVerdicts:
    """Reads the answers of a JSON API.

        verdicts = JsonVerdicts(member="status", done={"executed"}, refused={"rejected"}, pending={"pending"})
        verdicts(Answer.of(response.status_code, response.content, response.headers.get), earlier)

    `member` is where the body says what happened (`order.state` is a member of a member), compared without regard to
    case. Without `member`, a 2xx with a JSON body means done, and so does a 204. `reasons` and `reference` are where it
    says why, and under which name. `statuses` are those that this API means differently from the rest of the world.

    Raises:
        ConfigurationError: a word stands for two outcomes, words without a `member`, or a status or path that can't be
            one.
    """

    def __init__(
        self,
        *,
        member: str | None = None,
        done: Iterable[str] = (),
        refused: Iterable[str] = (),
        pending: Iterable[str] = (),
        reasons: Sequence[str] = ("reason", "error.message", "error", "detail", "message", "title"),
        reference: str = "id",
        statuses: Mapping[int, Outcome] | None = None,
    ) -> None:
        self._member = None if member is None else _path("member", member)
        self._reasons = [_path("reasons", reason) for reason in reasons]
        self._reference = _path("reference", reference)
        self._words: dict[str, Outcome] = {}
        for name, words, outcome in (
            ("done", done, Outcome.DONE),
            ("refused", refused, Outcome.REFUSED),
            ("pending", pending, Outcome.PENDING),
        ):
            for word in [words] if isinstance(words, str) else words:
                if self._words.setdefault(word.strip().casefold(), outcome) is not outcome:
                    raise ConfigurationError(name, f"{word!r} also means {self._words[word.strip().casefold()]}")
        if self._words and self._member is None:
            raise ConfigurationError("member", "name the member of the body that holds these words")
        if self._member is not None and Outcome.DONE not in self._words.values():
            raise ConfigurationError("done", "give the words that mean done")
        self._statuses = {}
        for status, meaning in (statuses or {}).items():
            if not 200 <= status <= 599:
                raise ConfigurationError("statuses", f"{status!r} is no status of an answer")
            self._statuses[status] = Outcome(meaning)

    def __call__(self, answer: Answer, earlier: Iterable[Outcome] = ()) -> Verdict:
        """The verdict on the work, given the outcomes of earlier attempts."""
        return after_history(self._read(answer), earlier)

    def inquiry(self, answer: Answer) -> Verdict:
        """The verdict that the answer to an inquiry gives: a 404 means never seen, and what says nothing leaves it
        unknown."""
        if answer.status == NOT_FOUND and answer.is_whole:
            return Verdict(Outcome.AGAIN, "never seen")
        found = self._read(answer)
        if found.outcome is Outcome.AGAIN or not 200 <= answer.status < 300:
            return Verdict(Outcome.UNKNOWN, found.reason, found.after)
        return after_inquiry(found)

    def _read(self, answer: Answer) -> Verdict:
        status, reason = answer.status, self.reason_of(answer)
        if not answer.is_whole:
            return Verdict(Outcome.UNKNOWN, _short(f"the answer broke off: {reason}"), fault=Fault.DOWNSTREAM)
        after = pause_of(status, answer.header) or None
        outcome = self._word_of(answer) or self._statuses.get(status)
        if outcome is not None:
            return Verdict(outcome, reason, after, self._reference_of(answer))
        if 200 <= status < 300:
            if self._member is None and (answer.body is not None or status == NO_CONTENT):
                return Verdict(Outcome.DONE, "", after, self._reference_of(answer))
            return Verdict(Outcome.UNKNOWN, reason, after)
        if status in AGAIN_STATUSES:
            return Verdict(Outcome.AGAIN, reason, after, fault=Fault.DOWNSTREAM if status == 408 else None)
        if status == UNAVAILABLE and retry_after(answer.header("Retry-After") or "") is not None:
            return Verdict(Outcome.AGAIN, reason, after, fault=Fault.DOWNSTREAM)
        if status in REASONED_STATUSES and self._words_of_reason(answer):
            return Verdict(Outcome.REFUSED, reason, after, self._reference_of(answer))
        if status in UNPROVEN_STATUSES:
            return Verdict(Outcome.UNKNOWN, reason, after)
        if status >= 500:
            return Verdict(Outcome.UNKNOWN, reason, after, fault=Fault.DOWNSTREAM)
        return Verdict(Outcome.AGAIN, reason, after, fault=Fault.CONNECTION)

    def reason_of(self, answer: Answer) -> str:
        """Status and reason on one line, of bounded length."""
        return _short(f"{answer.status}: {self._words_of_reason(answer) or answer.text}".rstrip(": "))

    def _words_of_reason(self, answer: Answer) -> str:
        found = (_member(answer.body, path) for path in self._reasons)
        return next((text for text in found if isinstance(text, str) and text.strip()), "")

    def _word_of(self, answer: Answer) -> Outcome | None:
        word = None if self._member is None else _member(answer.body, self._member)
        return self._words.get(word.strip().casefold()) if isinstance(word, str) else None

    def _reference_of(self, answer: Answer) -> str | None:
        value = _member(answer.body, self._reference)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
            value = str(value)
        return value[:MAX_REFERENCE] if isinstance(value, str) and value and value.isprintable() else None


def _path(name: str, text: str) -> tuple[str, ...]:
    steps = tuple(text.split("."))
    if not all(steps) or len(steps) > DEEPEST:
        raise ConfigurationError(name, f"{text!r} is no path to a member, such as order.status")
    return steps


def _member(body: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(body, Mapping):
            return None
        body = body.get(step)
    return body


def _json_of(content: bytes) -> Any:
    if len(content) > MAX_BODY:
        return None
    try:
        body = json.loads(content, parse_float=_finite, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    # A page that is a number or a text is no document of an API.
    return body if isinstance(body, dict | list) else None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if abs(number) < inf else None


def _short(text: str) -> str:
    """On one line, printable, of bounded length."""
    line = " ".join(text.split())
    return "".join(sign for sign in line if sign.isprintable())[:MAX_REASON]
