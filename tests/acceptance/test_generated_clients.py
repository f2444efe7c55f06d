"""Clients of other languages, generated from `openapi.json` as docs/howto/clients.md says, call a real service."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.documents import blocks
from tests.acceptance.service import Service

PAGE = Path(__file__).parents[2] / "docs/howto/clients.md"
TOKEN = "token-of-a-generated-client"
LANGUAGES = {"typescript": ("ts", "npm"), "go": ("go", "go"), "java": ("java", "mvn")}
"""The kind of block that has each program, and the command that builds it."""
TIMEOUT = 1200
"""Seconds to load a generator and its libraries, and to compile what it made, on a machine that is busy."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    tokens = {"PACELINE_API_TOKEN": TOKEN, "PACELINE_ADMIN_TOKEN": f"admin-{TOKEN}"}
    with Service(tmp_path_factory.mktemp("service"), **tokens) as running:
        yield running


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_generated_client_books_a_slot(service: Service, language: str, tmp_path: Path) -> None:
    kind, command = LANGUAGES[language]
    if shutil.which(command) is None:
        assert os.environ.get("PACELINE_REQUIRE") != "all", f"{command} is not installed"
        pytest.skip(f"{command} is not installed")
    page = [block._replace(text=block.text.replace("http://127.0.0.1:8080", service.url)) for block in blocks(PAGE)]
    describe = next(block.text for block in page if block.language == "bash")
    build = next(block.text for block in page if block.language == "bash" and f"\n{command} " in f"\n{block.text}")
    for block in page:
        if block.title is not None and block.language in (kind, *(["xml"] if kind == "java" else [])):
            saved = tmp_path / block.title
            saved.parent.mkdir(parents=True, exist_ok=True)
            saved.write_text(block.text)
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", describe + build],
        cwd=tmp_path,
        env=os.environ | {"PACELINE_API_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:] + ran.stdout[-4000:]
    assert f"from-{language} runs at 2031-03-01T16:00:0" in ran.stdout
    with service.client() as client:
        slot = client.get(f"/api/v1/slots/from-{language}", headers={"Authorization": f"Bearer {TOKEN}"}).json()
    assert slot["scheduledTime"] in ran.stdout
