"""The OpenAPI document is correct: thousands of generated requests get no undocumented status or body, with and
without tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.service import Service, run
from tests.effort import examples, is_thorough

RULES = Path(__file__).with_name("schemathesis.toml")
CASES = Path(__file__).with_name("schema_cases.py")
HYPOTHESIS = Path(__file__).parents[2] / ".hypothesis"
"""Where Hypothesis keeps which characters there are; to find them out anew takes a second."""
API, ADMIN = "api-token-of-the-schema-test", "admin-token-of-the-schema-test"
# The work of minutes, on a machine that others use too.
TIMEOUT = 1200
pytestmark = pytest.mark.timeout(TIMEOUT)
PARTS = 2
"""Of the operations, so that two workers can share the longest test of this file."""
PLAN = {"algorithm": "token_bucket", "capacity": 1000, "perSecond": 100}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that requires tokens, without a limit on wrong ones."""
    tokens = {"PACELINE_API_TOKEN": API, "PACELINE_ADMIN_TOKEN": ADMIN}
    directory = tmp_path_factory.mktemp("guarded")
    with Service(directory, **tokens, PACELINE_INGRESS_FAILURES_PER_MINUTE="0") as running:
        yield running


def operations(service: Service) -> list[str]:
    """The ids of all operations."""
    with service.client() as http:
        paths = http.get("/openapi.json").json()["paths"]
    names = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert len(set(names)) == len(names)
    return names


def explored(service: Service, phases: str, tried: int, *options: str, rules: Path = RULES) -> None:
    """Lets schemathesis loose on the service; fails with what it found."""
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("--config-file", str(rules), "run", f"{service.url}/openapi.json", f"--phases={phases}"),
            *("--request-timeout=60", f"--max-examples={tried}", "--generation-deterministic", "--no-color"),
            *("--warnings=off", *options),
        ],
        cwd=service.directory,
        # A small environment: the HTTP client looks through all of it for proxies, twice with each request.
        env={"PATH": os.environ["PATH"], "HYPOTHESIS_STORAGE_DIRECTORY": str(HYPOTHESIS)}
        | ({} if is_thorough() else {"SCHEMATHESIS_HOOKS": str(CASES)}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT - 60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-16000:] + ended.stderr[-2000:]
    assert "request failed" not in service.log


@pytest.mark.parametrize("part", range(PARTS))
def test_the_service_does_what_its_document_says(service: Service, part: int) -> None:
    with service.client() as http:
        # The plan that the document's examples name.
        assert http.put("/admin/plans/gold", json=PLAN).status_code == 200
    names = operations(service)
    own = names[part * len(names) // PARTS : (part + 1) * len(names) // PARTS]
    explored(service, "examples,coverage", 1, f"--include-operation-id-regex=^({'|'.join(own)})$")


@pytest.mark.skipif(not is_thorough(), reason="the thorough check's; with a token, chance is let loose below")
def test_nor_does_chance_find_anything_else(service: Service) -> None:
    explored(service, "fuzzing,stateful", examples(20))


def test_on_postgresql_it_does_too(tmp_path: Path, postgres_url: str) -> None:
    """It keeps less than SQLite does: no NUL, and no text longer than its column."""
    with Service(tmp_path, PACELINE_DATABASE_URL=postgres_url) as service:
        explored(service, "fuzzing", examples(10))


def test_with_the_right_token_it_does_too_and_never_without(guarded: Service) -> None:
    """`ignored_auth` sends each request again without the token, and with a wrong one."""
    explored(guarded, "examples,fuzzing,stateful", examples(10), "--header", f"Authorization: Bearer {ADMIN}")


TURNS = 3
"""In one turn each of three tokens gets a third of the operations; in three turns, all of them."""


@pytest.mark.parametrize("turn", range(TURNS if is_thorough() else 1))
def test_with_too_little_a_token_it_does_too(guarded: Service, turn: int) -> None:
    """No token, one that may read, and one without `admin`. What each may call everywhere, `test_service_access.py`
    shows."""
    made = run(guarded.directory, "tokens", "create", f"reader-{turn}", "--scope", "read", "--json")
    rules = RULES.read_text()
    for number, token in enumerate((json.loads(made.stdout)["token"], API), 1):
        names = operations(guarded)[(number + turn) % TURNS :: TURNS]
        headers = f'{{Authorization = "Bearer {token}"}}'
        rules += f"\n[[operations]]\ninclude-operation-id = {json.dumps(names)}\nheaders = {headers}\n"
    written = guarded.directory / f"turn-{turn}.toml"
    written.write_text(rules)
    explored(guarded, "fuzzing", 1, rules=written)
