"""Which words are recognised, and what is answered."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigurationError
from paceline_sms.inbound import REPLIES, WORDS, InboundWords, Word, plain_words

STOPS = [
    "STOP",
    "stop",
    " Stop. ",
    "»STOP«!",
    "stopp",
    "Arrêt",
    "ARRE\u0302T",
    "alto",
    "BAJA",
    "unsubscribe",
    "opt-out",
]
OTHERS = ["", "don't stop", "stop it", "bus stop", "STOPPED", "hello", "!", "STOP " * 100]


@pytest.mark.parametrize("text", STOPS)
def test_case_accents_and_punctuation_do_not_count(text: str) -> None:
    assert InboundWords().find(text) is Word.STOP


@pytest.mark.parametrize("text", OTHERS)
def test_only_a_word_alone_is_a_word(text: str) -> None:
    assert InboundWords().find(text) is None


def test_no_default_word_stands_for_two_kinds_and_each_kind_is_answered() -> None:
    words = InboundWords()
    for kind, listed in WORDS.items():
        assert {words.find(word) for word in listed} == {kind}
        assert len({plain_words(word) for word in listed}) == len(listed), "each once"
        assert words.reply_to(kind) == REPLIES[kind] != ""
    assert words.reply_to(None) == ""


def test_given_words_and_replies_replace_those_of_their_kind() -> None:
    words = InboundWords({"stop": ["Schluss!"]}, {"stop": "", "help": "Call us"})
    assert [words.find(text) for text in ("schluss", "STOP", "START")] == [Word.STOP, None, Word.START]
    assert [words.reply_to(word) for word in (Word.STOP, Word.HELP)] == ["", "Call us"]


@pytest.mark.parametrize(
    ("words", "replies", "problem"),
    [
        ({"end": ["END"]}, {}, "inbound_words: 'end' is none of stop, start, help"),
        ({"stop": ["!"]}, {}, "inbound_words: '!' is no word"),
        ({"start": ["Stop"]}, {}, "inbound_words: 'Stop' stands for both stop and start"),
        ({}, {"stopp": "x"}, "inbound_replies: 'stopp' is none of stop, start, help"),
        ({}, {"help": "a\x00b"}, "inbound_replies: .*printable"),
        ({}, {"help": "a" * 1601}, "inbound_replies: .*1600"),
    ],
)
def test_settings_that_can_not_be_used_are_refused(
    words: dict[str, list[str]], replies: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        InboundWords(words, replies)
