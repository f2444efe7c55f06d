"""The blocking forms are what the script makes of the asynchronous ones. A rule that no longer fits is an error."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from scripts import generate_blocking
from scripts.generate_blocking import PACKAGE, ROOT, TWINS, Facade, Facing, Twin, blocking, facade, main

SOURCE = '''"""An `AsyncThing`."""

import asyncio


class AsyncThing:
    """Waits."""

    async def wait(self, seconds: float) -> Awaitable[list[int]]:
        # async only: begin
        await asyncio.sleep(1)
        # async only: end
        asyncio.sleep(0)  # async only
        # blocking: print("for an AsyncThing, wait")
        async with self.lock:
            return await self._shielded(None, self.work(
                (1, 2)
            ))
'''
THING = Twin("thing.py", "_thing.py", wrappers=("self._shielded(None, ",))


def test_words_marks_and_wrappers() -> None:
    text = blocking(SOURCE, THING)
    assert text.startswith("# Generated from thing.py by scripts/generate_blocking.py. Do not edit.\n")
    assert "async" not in text.replace("asynchronous", "").replace("for an AsyncThing", "")
    assert "await" not in text
    assert '"""A `Thing`."""' in text
    assert "class Thing:" in text
    assert "def wait(self, seconds: float) -> list[int]:" in text
    assert 'print("for an AsyncThing, wait")' in text
    assert "return self.work((1, 2))" in text


@pytest.mark.parametrize(
    ("source", "twin"),
    [
        (SOURCE, replace(THING, replacements=[("a sentence that was rewritten", "")])),
        (SOURCE, replace(THING, wrappers=("self._gone(",))),
        (SOURCE.replace("        # async only: end\n", ""), THING),
    ],
)
def test_a_rule_that_no_longer_fits_is_refused(source: str, twin: Twin) -> None:
    with pytest.raises(ValueError, match=r"thing\.py"):
        blocking(source, twin)


def test_a_file_that_is_out_of_date_fails_the_check_and_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / PACKAGE
    package.mkdir(parents=True)
    (package / "thing.py").write_text(SOURCE)
    (package / "_thing.py").write_text("edited = True\n")
    monkeypatch.setattr(generate_blocking, "ROOT", tmp_path)
    monkeypatch.setattr(generate_blocking, "TWINS", (THING,))
    monkeypatch.setattr(generate_blocking, "FACADES", ())
    assert main(["--check"]) == 1
    assert "_thing.py is out of date: run `make blocking`" in capsys.readouterr().err
    assert (package / "_thing.py").read_text() == "edited = True\n"
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_the_generated_files_are_up_to_date() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.target)
def test_nothing_asynchronous_is_left(twin: Twin) -> None:
    text = (ROOT / PACKAGE / twin.target).read_text()
    assert not re.findall(r"\b(?:async (?:def|with|for)|await|asyncio|Awaitable|Coroutine)\b", text)


def queue_facade(name: str = "Queue") -> Facade:
    twin = Facing(name, "paceline.q.Parent", "A queue.", within=("connection", "item_type"))
    return Facade("queue.py", "_q.py", (twin,))


def test_a_facade_has_the_public_calls_with_their_signatures_and_docstrings() -> None:
    source = '''
from typing import Any
class Queue:
    async def close(self) -> None: ...
    async def _inner(self) -> None: ...
    async def put(self, item_type: str, *, connection: Any = None, **more: int) -> int:
        """Puts."""
    async def get(self, key: str) -> str:
        """Gets: `await queue.get("a")`."""
    async def put_all(self, keys: Iterable[str], *values: int) -> None:
        """Puts all."""
'''
    text = facade(source, queue_facade())
    assert "class BlockingQueue(Parent):" in text
    assert "def put(self, item_type: str, *, connection: Any = None, **more: int) -> int:" in text
    call = "connection, item_type, lambda queue: queue.put(item_type, connection=connection, **more)"
    assert call in " ".join(text.split())
    assert "return self._run(lambda queue: queue.get(key))" in text
    assert '"""Gets: `queue.get("a")`."""' in text
    read_first = "        keys = listed(keys)\n        return self._run(lambda queue: queue.put_all(keys, *values))\n"
    assert read_first in text
    assert "close" not in text
    assert "_inner" not in text
    base = "class Shelf:\n    async def look(self) -> None:\n        ..."
    assert "def look(self) -> None:" in facade(source, queue_facade(), base)
    with pytest.raises(ValueError, match="no class Gone"):
        facade(source, queue_facade("Gone"))
