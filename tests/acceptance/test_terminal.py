"""The command line as people see it: on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import IO

import pytest

from tests.acceptance.service import command, environment, run

AT = "2027-09-01T00:00:00Z"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def on_terminal(
    directory: Path, *arguments: str, stdout: IO[bytes] | None = None, columns: int = 80, **variables: str
) -> str:
    """What a command writes to its terminal; its standard output goes elsewhere if a file is given."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {"COLUMNS": "", "LINES": "", "TERM": "xterm"} | variables
    process = subprocess.Popen(
        command(*arguments), cwd=directory, env=environment(**variables), stdout=stdout or theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:
        pass  # how Linux reports that the other end is closed
    finally:
        os.close(ours)
    assert process.wait(60) == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


def test_a_file_of_events_shows_percent_and_time_left(tmp_path: Path) -> None:
    events = [json.dumps({"eventId": f"event-{number:03}", "requestedTime": AT}) for number in range(1000)]
    (tmp_path / "events.jsonl").write_text("\n".join(events) + "\n")
    with (tmp_path / "slots.jsonl").open("wb") as booked:
        shown = on_terminal(
            tmp_path,
            "slots", "assign", "--file", "events.jsonl", "--json",
            stdout=booked,
            PACELINE_SLOTS_BULK_BATCH="250",
        )  # fmt: skip
    drawn = re.findall(r"slots [━╌]{30} +(\d+) %  ([\d,]+)  [\d,]+/s  (\d+:\d\d) left", shown)
    assert [(percent, lines) for percent, lines, _ in drawn] == [
        ("25", "250"),
        ("50", "500"),
        ("75", "750"),
        ("100", "1,000"),
    ]
    assert shown.endswith("\r\x1b[K1000 booked, 0 had their slot already, 0 failed\n")
    assert max(len(re.sub(r"\x1b\[\w*", "", part)) for part in re.split("[\r\n]", shown)) < 80
    assert len((tmp_path / "slots.jsonl").read_text().splitlines()) == 1000


def test_tables_fit_eighty_columns_and_keep_their_times(tmp_path: Path) -> None:
    made: list[tuple[str, ...]] = [
        ("config", "set", "bulk-payments", "--max", "100000", "--window", "PT4S", "--max-delay", "PT12H"),
        ("tokens", "create", "the-night-shift-of-the-operations-team", "--scope", "read", "--scope", "admin"),
        ("tokens", "revoke", "the-night-shift-of-the-operations-team"),
        ("tokens", "create", "a-contractor", "--scope", "read", "--expires", "P90D"),
    ]
    for arguments in made:
        assert run(tmp_path, *arguments).returncode == 0
    shown: list[tuple[tuple[str, ...], int]] = [
        (("config", "history", "bulk-payments"), 1),
        (("tokens", "list"), 4),
        (("periodic", "list"), 0),
        (("workers",), 0),
        (("forecast", "--config", "bulk-payments", "--at", AT), 1),
    ]
    for arguments, times in shown:
        written = on_terminal(tmp_path, *arguments)
        rule = written.find("──")
        table = written if rule < 0 else written[rule:]
        assert max(map(len, table.splitlines())) <= 80, table
        assert len(TIME.findall(table)) == times, table


def test_the_demo_draws_itself_and_leaves_its_report(tmp_path: Path) -> None:
    shown = on_terminal(tmp_path, "demo", "--payments", "30", "--tps", "40", "--fail", "0", "--plot", "demo.png")
    drawn, _, report = shown.rpartition("\x1b[J")
    assert "╭─ \x1b[1mwindows of 4 s after " in drawn
    assert "╭─ \x1b[1mdownstream\x1b[0m ─" in drawn
    bare = re.sub(r"\x1b\[[\d;?]*\w", "", drawn)
    assert "30 of 30 payments executed" in bare
    assert {len(line) for line in bare.splitlines() if line[:1] in "╭│╰" and line} == {76}
    assert report.startswith("\x1b[?25h"), "the cursor is back"
    assert "✔ executed exactly once: 30" in report
    assert "╭" not in report


def shell_variables(directory: Path) -> dict[str, str]:
    """The environment of a user whose home is `directory` and who has `paceline` on the path."""
    home, programs = str(directory), Path(sys.executable).parent
    return environment(
        PATH=f"{programs}:{os.environ['PATH']}", HOME=home, ZDOTDIR=home, XDG_CONFIG_HOME="", TERM="dumb"
    )


def complete(typed: str, directory: Path) -> list[str]:
    """What bash offers after these words and a TAB."""
    words = typed.split(" ")
    shell = f"""
eval "$(paceline completion bash)"
COMP_WORDS=({" ".join(f'"{word}"' for word in words)}) COMP_CWORD={len(words) - 1}
_paceline_completion paceline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return output_of(directory, "bash", "-c", shell).split()


def output_of(directory: Path, *arguments: str) -> str:
    ended = subprocess.run(
        arguments, cwd=directory, env=shell_variables(directory), capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout


typed_and_offered = pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("paceline fo", ["forecast"]),
        ("paceline slots ", ["assign", "show", "list", "explain", "cancel", "replan", "reconcile"]),
        ("paceline slots assign --f", ["--file"]),
        ("paceline worker s", ["sender"]),
        ("paceline migrate sql --dialect p", ["postgresql"]),
        ("paceline config set bulk --spread e", ["even"]),
    ],
)


@typed_and_offered
def test_bash_completes_commands_options_and_choices(typed: str, offered: list[str], tmp_path: Path) -> None:
    assert complete(typed, tmp_path) == offered


@typed_and_offered
@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed: apt-get install fish")
def test_fish_completes_commands_options_and_choices(typed: str, offered: list[str], tmp_path: Path) -> None:
    script = tmp_path / ".config/fish/completions/paceline.fish"
    script.parent.mkdir(parents=True)
    script.write_text(run(tmp_path, "completion", "fish").stdout)
    lines = output_of(tmp_path, "fish", "-c", f"complete -C {shlex.quote(typed)}").splitlines()
    assert sorted(line.split("\t")[0] for line in lines) == sorted(offered)


@typed_and_offered
@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed: apt-get install zsh")
def test_zsh_completes_commands_options_and_choices(typed: str, offered: list[str], tmp_path: Path) -> None:
    """In a home whose .zshrc holds the one line of the help text and nothing else."""
    (tmp_path / ".zshrc").write_text("PS1='ready> '\neval \"$(paceline completion zsh)\"\n")
    ours, theirs = pty.openpty()
    zsh = subprocess.Popen(
        ["zsh", "-i"],
        cwd=tmp_path, env=shell_variables(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        started = read_until(ours, ["ready> "])
        assert "not found" not in started, started
        os.write(ours, f"{typed}\t".encode())
        read_until(ours, offered)
    finally:
        zsh.kill()
        zsh.wait()
        os.close(ours)


def read_until(terminal: int, words: list[str]) -> str:
    """What a terminal shows until all of these words have come."""
    shown, deadline = "", time.monotonic() + 60
    while not all(word in shown for word in words):
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{words} did not come: {shown}"
        shown += os.read(terminal, 65536).decode()
    return shown


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_every_shell_gets_its_script(shell: str, word: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "completion", shell)
    assert ended.returncode == 0
    assert word in ended.stdout
    assert "_PACELINE_COMPLETE" in ended.stdout
    assert ended.stderr == ""


def test_the_doctors_verdicts_are_coloured_unless_the_reader_wants_none(tmp_path: Path) -> None:
    assert "\x1b[32mok  \x1b[0m  paceline: " in on_terminal(tmp_path, "doctor")
    assert "\x1b[" not in on_terminal(tmp_path, "doctor", NO_COLOR="1")
    assert "\x1b[" not in run(tmp_path, "doctor").stdout
