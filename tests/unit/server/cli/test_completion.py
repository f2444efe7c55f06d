"""TAB completes the values of each option that takes one of a few."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete

from paceline.__main__ import main as start
from paceline.server.cli import app

FREE_TEXT = {
    "--after", "--at", "--before", "--concurrency", "--config", "--context", "--control-sum", "--count", "--cron",
    "--cursor", "--domain", "--error", "--event", "--every", "--expires", "--expires-in", "--feed", "--follow", "--for",
    "--from", "--hold-for", "--host", "--kept", "--key", "--known", "--lane", "--lane-concurrency", "--latency",
    "--max-delay", "--new-lane", "--notice", "--overlap", "--override", "--owner", "--per-second", "--phone", "--plan",
    "--prefix", "--queue", "--queues", "--rate", "--reason", "--to", "--type", "--window", "--zone",
}  # fmt: skip
"""Options whose values are names, times, numbers or texts of the user, in every command that has them."""


def text_options(group: click.Group, *path: str) -> Iterator[tuple[str, str]]:
    """The words of each command, and each of its options that click takes as any text."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from text_options(command, *path, name)
            continue
        for option in command.params:
            if isinstance(option, click.Option) and type(option.type) is type(click.STRING):
                yield " ".join([*path, name]), option.opts[0]


def offered(command: str, *words: str) -> list[str]:
    """The completions of the last of these words."""
    completion = ShellComplete(app, {}, "paceline", "_PACELINE_COMPLETE")
    return [item.value for item in completion.get_completions([*command.split(), *words[:-1]], words[-1])]


ALL = sorted(text_options(app.load_all()))


@pytest.mark.parametrize(("command", "option"), [pair for pair in ALL if pair[1] not in FREE_TEXT])
def test_an_option_completes_its_values(command: str, option: str) -> None:
    values = offered(command, option, "")
    assert len(values) > 1, "add `shell_complete=completing(…)`, or list the option as FREE_TEXT"
    assert offered(command, option, values[-1][:-1]) == [values[-1]]


def test_options_of_free_text_complete_nothing() -> None:
    assert {option for _, option in ALL} >= FREE_TEXT
    assert [pair for pair in ALL if pair[1] in FREE_TEXT and offered(*pair, "")] == []


@pytest.mark.parametrize(
    ("command", "option", "values"),
    [
        ("config set bulk", "--spread", "jitter even"),
        ("config set bulk", "--first-window", "proportional whole"),
        ("plans set gold", "--algorithm", "token_bucket fixed_window sliding_window sliding_log gcra concurrency"),
        ("plans set gold", "--calendar", "day week month"),
        ("plans set gold", "--on-error", "open closed fallback none"),
        ("slots list", "--status", "BOOKED CANCELLED"),
        ("slots replan", "--direction", "earlier spread"),
        ("tokens create ops", "--scope", "read assign send view operate admin"),
        ("queue set T", "--on-unknown", "retry inquire hold"),
        ("queue cancel T", "--status", "READY CLAIMED DISPATCHED COMPLETED FAILED UNKNOWN DEAD_LETTER CANCELLED"),
        ("payments submit feed", "--format", "csv jsonl pain001"),
        ("payments reconcile statement", "--format", "csv camt053"),
        ("periodic set report", "--catch-up", "skip last all"),
        ("sms quota 7", "--unit", "message segment"),
    ],
)
def test_the_values_are_those_of_the_domain(command: str, option: str, values: str) -> None:
    assert offered(command, option, "") == values.split()


def test_a_tab_prints_nothing_but_what_it_completes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["paceline"])
    for name, value in (("PACELINE_REDIS_URI", "x"), ("COMP_WORDS", "paceline wor"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        start()
    assert "PACELINE_REDIS_URI is not a setting" in capsys.readouterr().err
    monkeypatch.setenv("_PACELINE_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        start()
    assert capsys.readouterr() == ("plain,worker\nplain,workers\n", "")
