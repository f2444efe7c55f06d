"""Every Python and shell block of every document is typed and run, page by page, each in an empty folder."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.testing import TemporalServer, require
from tests.acceptance.collector import collector
from tests.acceptance.documents import Block, Reader, assert_every_block_is_read, blocks, hosts
from tests.faults.llm_provider import providing
from tests.integration.smsc import smsc_in_a_thread

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = {
    "docs/explanation/dispatch.md": ["a diagram"],
    "docs/explanation/notifications.md": ["a diagram"],
    "docs/howto/back-up.md": [
        "needs the PostgreSQL server of the reader; tests/faults/test_backup.py does all of this page",
        "needs the PostgreSQL server of the reader; tests/faults/test_backup.py does all of this page",
        "needs the statement of the reader's bank; tests/faults/test_backup.py does all of this page",
    ],
    "docs/howto/clients.md": ["takes minutes; tests/acceptance/test_generated_clients.py runs all of this page"] * 8,
    "docs/howto/deploy.md": ["needs a container engine"],
    "docs/howto/envoy.md": [
        "a part of the filter; tests/acceptance/test_envoy.py has Envoy validate it",
        "it needs a mesh; tests/acceptance/test_envoy.py has Envoy validate what is patched in",
    ],
    "docs/howto/kafka.md": ["it needs a cluster with TLS"],
    "docs/howto/postgresql.md": ["needs two servers of the reader; tests/faults/test_postgres_failover.py has them"],
    "docs/howto/protect-the-service.md": [
        "needs an OpenID provider; tests/integration/test_oidc.py logs in at a real one",
    ],
    "docs/howto/redis.md": ["it changes the users of your server"],
    "docs/howto/temporal.md": ["changes which build of the running workers is current"],
    "docs/howto/trace-a-payment.md": ["a diagram"],
    "docs/howto/unknown-outcomes.md": ["it needs an item that is UNKNOWN"],
    "docs/reference/cli.md": [
        "it changes the files of the shell of whoever reads it; the scripts are run by tests",
    ],
    "docs/reference/logs.md": ["a line of the log, cut short; tests/acceptance/test_logs.py reads real ones"],
}
"""The blocks that nothing runs, by page, each with its reason as the page gives it."""
MARKS = {
    "empty_postgres_url": "postgres",
    "redis_url": "redis",
    "temporal_frontend": "temporal",
    "kafka_bootstrap": "kafka",
}
FAILURES = (AssertionError, ValueError, RuntimeError, TimeoutError, SyntaxError, subprocess.TimeoutExpired)


@pytest.fixture
def temporal_frontend() -> Iterator[str]:
    """A Temporal of the page's own: workers of other tests poll the same task queues."""
    require("temporal")
    with TemporalServer(durable=False) as server:
        yield server.address


@pytest.fixture
def trace_collector() -> Iterator[str]:
    with collector() as received:
        yield received.url


@pytest.fixture
def smsc_address() -> Iterator[str]:
    with smsc_in_a_thread() as center:
        yield center.address


@pytest.fixture
def llm_provider() -> Iterator[str]:
    with providing(500, 200_000) as provider:
        yield provider.address


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _marked(page: Path) -> Any:
    servers = [getattr(pytest.mark, MARKS[fixture]) for fixture in hosts(page).values() if fixture in MARKS]
    return pytest.param(page, marks=servers, id=_named(page))


@pytest.mark.parametrize("page", [_marked(page) for page in PAGES if "```" in page.read_text("utf-8")])
def test_every_block_runs_as_it_is_written(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert_every_block_is_read(page)
    replaced = {shown: request.getfixturevalue(fixture) for shown, fixture in hosts(page).items()}
    # The broker is shared with other tests: topics of the page's own.
    own = uuid.uuid4().hex[:12]
    topics = {"PACELINE_SMS_TOPIC": f"sms-{own}", "PACELINE_SMS_EVENTS_TOPIC": f"events-{own}"}
    with Reader(tmp_path, replaced=replaced, **(topics if "kafka:9092" in replaced else {})) as reader:
        for block in blocks(page):
            try:
                reader.follow(block)
            except FAILURES as error:
                pytest.fail(f"{_named(page)}, line {block.line}: {error}\n{block.text}", pytrace=False)
        assert not reader.unused, "saved, and never used"


def test_blocks_that_are_not_run_are_known() -> None:
    left_out = {_named(page): [block.not_run for block in blocks(page) if block.not_run] for page in PAGES}
    assert {page: reasons for page, reasons in left_out.items() if reasons} == NOT_RUN


@pytest.mark.parametrize("missing", ["paceline[no-such-extra]", "paceline[server] no-such-package", "celery[sqs]"])
def test_what_a_block_installs_is_there(missing: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.follow(Block(1, "bash", None, "pip install 'paceline[server]' pytest\n"))
        with pytest.raises(AssertionError, match=r"no-such|boto3"):
            reader.follow(Block(1, "bash", None, f"pip install {missing}\n"))
