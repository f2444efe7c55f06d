"""What the documents say is what happens: every block of the README and the tutorial is typed and run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import typer

from headgate.entrypoints.cli import app
from tests.acceptance.documents import Reader, assert_alike, assert_matches, blocks
from tests.acceptance.service import run

ROOT = Path(__file__).parents[2]
FOREIGN = re.compile(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@cache
def commands() -> Any:
    """The command line, with every group of commands loaded."""
    return typer.main.get_command(app).load_all()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_every_block_runs_as_it_is_written(page: str, tmp_path: Path, postgres_url: str) -> None:
    replaced = {"postgresql://user:password@host/name": postgres_url}
    with Reader(tmp_path, replaced=replaced) as reader:
        for block in blocks(ROOT / page):
            try:
                reader.follow(block)
            except (AssertionError, ValueError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
                pytest.fail(f"{page}, line {block.line}: {error}\n{block.text}", pytrace=False)
        assert not reader.unused, "saved, and never run"


def test_make_run_is_headgate_serve() -> None:
    """The README's `make run` is replaced by what it does; this is what it does."""
    recipe = re.search(r"^run:.*\n\t@?(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == "$(BIN)/headgate serve"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    """In code, `headgate …` names a command there is, with options it has."""
    text = page.read_text("utf-8")
    code = re.findall(r"^```(?:sh|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    code += re.findall(r"^    (.*)$", prose, re.MULTILINE)
    code += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    for typed in re.findall(r"(?:^|&& )[ ]*headgate ([^#|;&\n]+)", "\n".join(code).replace("\\\n", " "), re.MULTILINE):
        command, words = commands(), typed.split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if words and words[0].isalpha() and words[0].islower():
            assert not hasattr(command, "commands"), f"there is no headgate {typed}"
        known = {spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)}
        for option in re.findall(r"--[a-z][a-z-]*", typed):
            assert option in {*known, "--help"}, f"{option} in headgate {typed}"


def test_guides_show_the_token_that_a_guarded_path_asks_for() -> None:
    """Where tokens exist, a line without one gets 401."""
    seen = 0
    for page in (
        ROOT / "docs/runbook.md",
        *sorted((ROOT / "docs/howto").glob("*.md")),
        ROOT / "docs/reference/http.md",
    ):
        for typed in re.findall(r"^ *curl .*$", page.read_text("utf-8").replace("\\\n", " "), re.MULTILINE):
            for area, token in (("/admin", "HEADGATE_ADMIN_TOKEN"), ("/api", "HEADGATE_API_TOKEN")):
                if re.search(rf":\d+{area}/", typed):
                    seen += 1
                    assert f'-H "Authorization: Bearer ${token}"' in typed, f"{page.name}: {typed}"
    assert seen >= 7


def test_plans_in_guides_can_be_made_as_written(tmp_path: Path) -> None:
    """Each `headgate plans set` of the how-tos, on a fresh database."""
    typed = [
        line
        for page in sorted((ROOT / "docs/howto").glob("*.md"))
        for line in re.findall(r"^headgate (plans set .*)$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert typed
    for number, words in enumerate(typed):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        ended = run(tmp_path, *shlex.split(words, comments=True), HEADGATE_DATABASE_URL=url)
        assert ended.returncode == 0, f"{words}: {ended.stderr}"


def test_every_command_is_listed() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    unseen = [(name, command) for name, command in commands().commands.items()]
    while unseen:
        name, command = unseen.pop()
        children = getattr(command, "commands", {})
        unseen += [(f"{name} {child}", inner) for child, inner in children.items()]
        assert children or f"`headgate {name}" in page.replace("migrate [up]", "migrate up"), f"list headgate {name}"


def test_every_entry_of_the_runbook_says_what_to_check_what_to_do_and_how() -> None:
    entries = (ROOT / "docs/runbook.md").read_text("utf-8").split("\n## ")[1:]
    assert len(entries) >= 20
    for entry in entries:
        heading, _, text = entry.partition("\n")
        shown, check, action = (text.find(f"\n**{word}") for word in ("You ", "Check**", "Do**"))
        assert 0 <= shown < check < action, (
            f"{heading}: tell what one sees, how to check, and what to do, in this order"
        )
        commands = re.findall(r"^    (?:headgate|curl) .+$", text[check:action], re.MULTILINE)
        assert commands, f"{heading}: which command checks it?"
        # What is down outside is repaired outside; everything else has a command.
        outside = re.match(r"\*\*Do\*\* (?:repair|restart|correct|set all clocks)", text[action + 1 :])
        assert outside or re.search(r"^    (?:headgate|curl) .+$", text[action:], re.MULTILINE), heading


def test_every_page_is_in_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    for page in PAGES:
        assert str(page.relative_to(ROOT / "docs")) in listed, "add it to mkdocs.yml"


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        text = page.read_text("utf-8")
        assert not re.findall(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>", text), (
            page.name
        )
        assert "<!-- generated:" not in text
    reference = tmp_path / "reference"
    for page, mentioned in {
        "http.html": "/api/v1/slots/{eventId}",
        "cli.html": "headgate config history",
        "metrics.html": "rate_limiter_window_lookahead_depth",
        "python.html": "The event's slot: the one it has, or else the earliest free one",
    }.items():
        assert mentioned in unescape((reference / page).read_text("utf-8")), page


def test_the_checks_can_fail() -> None:
    assert_matches("a …\n…\nz\n", "a b\nc\nd\nz\n")
    with pytest.raises(AssertionError):
        assert_matches("a …\nz\n", "a b\nc\nz\n")
    shown = {"at": "2030-03-01T16:00:02.371Z", "start": "2030-03-01T16:00:00.000Z", "delayMs": 1}
    assert_alike(shown, shown | {"at": "2030-03-01T16:00:03.000Z", "delayMs": 2})
    for wrong in ({"at": "2030-03-01T16:09:03.000Z"}, {"start": "2030-03-01T16:00:04.000Z"}, {"more": 1}):
        with pytest.raises(AssertionError):
            assert_alike(shown, shown | wrong)
