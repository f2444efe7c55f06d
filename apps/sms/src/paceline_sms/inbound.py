"""Messages that people send to us: which word one is, and what is answered.

A message is a word only if it holds nothing else. Case, accents, punctuation and spaces around words do not count.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from paceline.errors import ConfigurationError
from paceline_sms.recipients import masked

LONGEST_WORD = 100
LONGEST_REPLY = 1600
LONGEST_ID = 128

_log = logging.getLogger(__name__)


class Word(StrEnum):
    """What a person asks for."""

    STOP = "stop"
    START = "start"
    HELP = "help"


class Inbound(NamedTuple):
    """A message that a provider received for us."""

    inbound_id: str
    """The provider's id of it: a message that is delivered twice has it twice."""
    phone: str
    """Who sent it, in E.164."""
    text: str


class Reply(NamedTuple):
    """The body of the answer to a provider."""

    media_type: str
    body: bytes


WORDS: Mapping[Word, Sequence[str]] = {
    Word.STOP: (
        *("STOP", "STOP ALL", "STOPALL", "UNSUBSCRIBE", "OPT OUT", "OPTOUT", "CANCEL", "END", "QUIT", "REVOKE"),
        *("STOPP", "ABMELDEN", "ARRET", "ARRETER", "DESABONNER", "ALTO", "BAJA", "PARAR", "SAIR", "CANCELAR"),
        *("BASTA", "ANNULLA", "AFMELDEN", "AVSLUTA", "STOPPA", "СТОП"),
    ),
    Word.START: (
        *("START", "UNSTOP", "SUBSCRIBE", "OPT IN", "OPTIN", "RESUME"),
        *("ANMELDEN", "REPRENDRE", "INSCRIRE", "ALTA", "INICIO", "INICIAR", "INIZIA", "AANMELDEN", "STARTA", "СТАРТ"),
    ),
    Word.HELP: ("HELP", "INFO", "HILFE", "AIDE", "AYUDA", "AJUDA", "AIUTO", "HULP", "HJALP", "ПОМОЩЬ"),
}
REPLIES: Mapping[Word, str] = {
    Word.STOP: "You will get no more messages from us. Reply START to get them again.",
    Word.START: "You will get our messages again. Reply STOP to end them.",
    Word.HELP: "Reply STOP to get no more messages, START to get them again.",
}
_NONE: Mapping[str, Any] = {}


class InboundWords:
    """The words that are recognised, and the replies. Words or a reply that are given replace the default ones of their
    kind; an empty reply answers nothing.

    Raises:
        ConfigurationError: A kind is not known, a word is empty or stands for two kinds, or a reply is too long.
    """

    def __init__(self, words: Mapping[str, Sequence[str]] = _NONE, replies: Mapping[str, str] = _NONE) -> None:
        self._kinds: dict[str, Word] = {}
        given = {_kind(name, "inbound_words"): listed for name, listed in words.items()}
        for kind, listed in {**WORDS, **given}.items():
            for word in listed:
                plain = plain_words(word)
                if not plain or len(word) > LONGEST_WORD:
                    raise _wrong("inbound_words", f"{word!r:.40} is no word")
                if self._kinds.setdefault(plain, kind) is not kind:
                    raise _wrong("inbound_words", f"{word!r:.40} stands for both {self._kinds[plain]} and {kind}")
        of_kind = {_kind(name, "inbound_replies"): _checked_reply(text) for name, text in replies.items()}
        self._replies = {**REPLIES, **of_kind}

    def find(self, text: str) -> Word | None:
        """The word that the text is; None for anything else."""
        return self._kinds.get(plain_words(text)) if len(text) <= LONGEST_WORD else None

    def reply_to(self, word: Word | None) -> str:
        """The answer; empty if there is none."""
        return "" if word is None else self._replies[word]


class InboundStore(Protocol):
    """Where messages of people are noted."""

    async def receive_inbound(self, provider: str, message: Inbound, word: Word | None) -> bool:
        """Notes a message; False if it was noted before."""
        ...


async def received(store: InboundStore, words: InboundWords, provider: str, message: Inbound) -> str:
    """Notes a message that a provider has received for us, and enters or removes an opt-out. Returns the reply."""
    word = words.find(message.text)
    if await store.receive_inbound(provider, message, word):
        what = "a message" if word is None else word.upper()
        _log.info("%s received %s from %s", provider, what, masked(message.phone))
    return words.reply_to(word)


def plain_words(text: str) -> str:
    """The letters and digits of a text, without accents, in lower case, with one space between words."""
    letters = (c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return " ".join("".join(c if c.isalnum() else " " for c in letters).split())


def _kind(name: str, field: str) -> Word:
    try:
        return Word(name)
    except ValueError:
        raise _wrong(field, f"{name!r:.40} is none of {', '.join(Word)}") from None


def _checked_reply(text: str) -> str:
    if len(text) > LONGEST_REPLY or not text.replace("\n", "").isprintable():
        raise _wrong("inbound_replies", f"{text!r:.40} is not a text of at most {LONGEST_REPLY} printable characters")
    return text


def _wrong(field: str, problem: str) -> ConfigurationError:
    return ConfigurationError(field, problem)
