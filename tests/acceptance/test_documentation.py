"""The documentation is correct: links, commands, options, tokens, and the site that is built from it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from paceline.server.cli import app
from tests.acceptance.documents import assert_alike, matches
from tests.acceptance.service import run

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
FOREIGN = re.compile(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@cache
def commands() -> Any:
    """The command line, with every group of commands loaded."""
    return app.load_all()


def test_make_run_is_paceline_serve() -> None:
    """The README's `make run` is replaced by what it does; this is what it does."""
    recipe = re.search(r"^run:.*\n\t@?(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == "$(BIN)/paceline serve"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    """In code, `paceline …` names a command there is, with options it has."""
    text = page.read_text("utf-8")
    code = re.findall(r"^```(?:sh|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    code += re.findall(r"^    (.*)$", prose, re.MULTILINE)
    code += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    for typed in re.findall(r"(?:^|&& )[ ]*paceline ([^#|;&\n]+)", "\n".join(code).replace("\\\n", " "), re.MULTILINE):
        command, words = commands(), typed.split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if words and words[0].isalpha() and words[0].islower():
            assert not hasattr(command, "commands"), f"there is no paceline {typed}"
        known = {spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)}
        for option in re.findall(r"--[a-z][a-z-]*", typed):
            assert option in {*known, "--help"}, f"{option} in paceline {typed}"


def test_guides_show_the_token_that_a_guarded_path_asks_for() -> None:
    """Where tokens exist, a line without one gets 401."""
    seen = 0
    for page in (
        ROOT / "docs/runbook.md",
        *sorted((ROOT / "docs/howto").glob("*.md")),
        ROOT / "docs/reference/http.md",
    ):
        for typed in re.findall(r"^ *curl .*$", page.read_text("utf-8").replace("\\\n", " "), re.MULTILINE):
            for area, token in (("/admin", "PACELINE_ADMIN_TOKEN"), ("/api", "PACELINE_API_TOKEN")):
                if re.search(rf":8080{area}/", typed):
                    seen += 1
                    assert f'-H "Authorization: Bearer ${token}"' in typed, f"{page.name}: {typed}"
    assert seen >= 7


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_token_made_for_a_service_is_carried_to_the_next_terminal(page: Path) -> None:
    """`paceline serve` keeps its terminal: in another one the variable is empty, and a call with it gets 401."""
    served = re.findall(
        r"^export [^\n]*_TOKEN=\$\([^\n]*\n(.*?)^paceline serve\n```\n(.*?)^```bash$",
        page.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    for typed, prose in served:
        assert "PACELINE_API_TOKEN=$PACELINE_API_TOKEN" in typed, "the service's terminal can't be asked for it later"
        assert "second terminal" in prose


def test_plans_in_guides_can_be_made_as_written(tmp_path: Path) -> None:
    """Each `paceline plans set` of the how-tos, on a fresh database."""
    typed = [
        line
        for page in sorted((ROOT / "docs/howto").glob("*.md"))
        for line in re.findall(r"^paceline (plans set .*)$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert typed
    for number, words in enumerate(typed):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        ended = run(tmp_path, *shlex.split(words, comments=True), PACELINE_DATABASE_URL=url)
        assert ended.returncode == 0, f"{words}: {ended.stderr}"


def test_every_command_is_listed() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    unseen = [(name, command) for name, command in commands().commands.items()]
    while unseen:
        name, command = unseen.pop()
        children = getattr(command, "commands", {})
        unseen += [(f"{name} {child}", inner) for child, inner in children.items()]
        assert children or f"`paceline {name}" in page.replace("migrate [up]", "migrate up"), f"list paceline {name}"


def test_every_entry_of_the_runbook_says_what_to_check_what_to_do_and_how() -> None:
    entries = (ROOT / "docs/runbook.md").read_text("utf-8").split("\n## ")[1:]
    assert len(entries) >= 20
    for entry in entries:
        heading, _, text = entry.partition("\n")
        shown, check, action = (text.find(f"\n**{word}") for word in ("You ", "Check**", "Do**"))
        assert 0 <= shown < check < action, (
            f"{heading}: tell what one sees, how to check, and what to do, in this order"
        )
        commands = re.findall(r"^    (?:paceline|curl) .+$", text[check:action], re.MULTILINE)
        assert commands, f"{heading}: which command checks it?"
        # What is down outside is repaired outside; everything else has a command.
        outside = re.match(r"\*\*Do\*\* (?:repair|restart|correct|set all clocks)", text[action + 1 :])
        assert outside or re.search(r"^    (?:paceline|curl) .+$", text[action:], re.MULTILINE), heading


def test_no_page_has_a_name_that_only_the_authors_know() -> None:
    """A seed is what this project grew from; readers never saw one."""
    for page in [ROOT / "README.md", *PAGES]:
        assert not re.search(r"\bseeds?\b", page.read_text("utf-8"), re.IGNORECASE), page.name


def test_the_site_has_every_page_and_no_other() -> None:
    """The builder does not report a page that is not in the navigation, nor an entry without a page."""
    listed = re.findall(r"\S+\.md$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2], re.MULTILINE)
    assert sorted(listed) == [str(page.relative_to(ROOT / "docs")) for page in PAGES]


def built(source: Path) -> subprocess.CompletedProcess[str]:
    """The site of the documents below `source`, in its folder `site`."""
    # Half of the time is loading what the reference pages are generated from.
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=source,
        timeout=280,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    ended = built(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    site = tmp_path / "site"
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        text = page.read_text("utf-8")
        assert not FOREIGN.findall(text), page.name
        assert "<!-- generated:" not in text
        # Links inside what is generated are made after the builder has looked at the links.
        ids = set(re.findall(r'\bid="([^"]+)"', text))
        assert {"", *ids} >= {unescape(name) for name in re.findall(r'href="#([^"]*)"', text)}, page.name
    reference = site / "reference"
    for name, mentioned in {
        "http.html": "/api/v1/slots/{eventId}",
        "cli.html": "paceline config history",
        "metrics.html": "rate_limiter_window_lookahead_depth",
        "python.html": "The event's slot: the one it has, or else the earliest free one",
    }.items():
        assert mentioned in unescape((reference / name).read_text("utf-8")), name


def test_a_dead_link_stops_the_build_of_the_site(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("# Here\n\n[there](#there)\n")
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text().partition("\nmarkdown_extensions:")[0])
    ended = built(tmp_path)
    assert ended.returncode != 0
    assert "anchor does not exist" in ended.stdout + ended.stderr


def test_the_checks_can_fail() -> None:
    assert matches("a …\n…\nz\n", "a b\nc\nd\nz\n")
    assert not matches("a …\nz\n", "a b\nc\nz\n")
    shown = {"at": "2030-03-01T16:00:02.371Z", "start": "2030-03-01T16:00:00.000Z", "delayMs": 1}
    assert_alike(shown, shown | {"at": "2030-03-01T16:00:03.000Z", "delayMs": 2})
    for wrong in ({"at": "2030-03-01T16:09:03.000Z"}, {"start": "2030-03-01T16:00:04.000Z"}, {"more": 1}):
        with pytest.raises(AssertionError):
            assert_alike(shown, shown | wrong)
