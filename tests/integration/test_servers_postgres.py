"""The packaged PostgreSQL: one per run for everyone, and private ones that can be broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from paceline.testing import PostgresServer, eventually, plugin
from paceline.testing.servers import postgres
from paceline.testing.servers.postgres import PostgresDatabases, copied_installation, packaged_installation

pytestmark = pytest.mark.full

postgres_url = plugin.postgres_url
"""The one that users have, not the suite's own."""


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=2) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def test_each_test_gets_an_empty_database_of_the_shared_server(postgres_url: str) -> None:
    assert rows(postgres_url, "SELECT 1") == [(1,)]
    assert rows(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    rows(postgres_url, "CREATE TABLE left_behind (a int)")


def test_no_test_sees_what_another_left(postgres_url: str) -> None:
    assert rows(postgres_url, "SELECT to_regclass('left_behind')") == [(None,)]


def test_a_database_is_dropped_under_open_connections(postgres_server: PostgresDatabases) -> None:
    url = postgres_server.create("test_open_connection")
    with psycopg.connect(url, autocommit=True) as connection:
        postgres_server.drop("test_open_connection")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        rows(url, "SELECT 1")


def test_committed_data_and_the_port_survive_stop_kill_and_restart(own_postgres: PostgresServer) -> None:
    url = own_postgres.url
    rows(url, "CREATE TABLE t (a int)")
    for step, bring_back in enumerate((own_postgres.restart, _killed_and_started(own_postgres))):
        rows(url, f"INSERT INTO t VALUES ({step})")
        bring_back()
        assert own_postgres.url == url
    assert rows(url, "SELECT a FROM t ORDER BY a") == [(0,), (1,)]


def _killed_and_started(server: PostgresServer) -> Callable[[], None]:
    def bring_back() -> None:
        server.kill()
        assert not server.running
        server.start()

    return bring_back


async def test_a_paused_server_answers_nothing_until_resumed(own_postgres: PostgresServer) -> None:
    async with await psycopg.AsyncConnection.connect(own_postgres.url, autocommit=True) as connection:
        own_postgres.pause()
        try:
            with pytest.raises(psycopg.OperationalError):
                rows(own_postgres.url, "SELECT 1")
        finally:
            own_postgres.resume()
        cursor = await connection.execute("SELECT 1")
        assert await cursor.fetchone() == (1,)
    await eventually(lambda: rows(own_postgres.url, "SELECT 1"))


def test_settings_reach_the_server() -> None:
    with PostgresServer(fsync=True, settings={"work_mem": "7MB"}) as server:
        assert rows(server.url, "SHOW work_mem") == [("7MB",)]
        assert rows(server.url, "SHOW fsync") == [("on",)]
        assert rows(server.url, "SHOW synchronous_commit") == [("on",)]
        assert rows(server.url, "SHOW max_connections") == [("300",)]


def test_a_new_data_directory_is_kept_for_later_servers(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresServer, "_initialize", lambda _: pytest.fail("not from the copy"))
    with PostgresServer() as server:
        assert rows(server.url, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("failing", ["template_directory", "shutil.copytree"])
def test_where_no_data_directory_can_be_kept_each_server_makes_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: str
) -> None:
    def fail(*_: object) -> Path:
        raise RuntimeError if failing == "template_directory" else OSError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(f"paceline.testing.servers.postgres.{failing}", fail)
    with PostgresServer() as server:
        assert rows(server.url, "SELECT 1") == [(1,)]


def test_a_killed_server_leaves_no_shared_memory() -> None:
    def segments() -> set[str]:
        return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}

    with PostgresServer() as server:
        lines = Path(server.directory, "data", "postmaster.pid").read_text().splitlines()
        segment = lines[6].split()[1]
        assert segment in segments()
        server.kill()
        assert segment in segments()
    assert segment not in segments()


def test_a_closed_server_leaves_no_file_in_shared_memory() -> None:
    """Killed servers do not remove what they have there, and each start has another name for it."""
    with PostgresServer() as server:
        mapped = Path(f"/proc/{server.pid}/maps").read_text().splitlines()
        files = {Path(words[5]) for words in (line.split() for line in mapped) if len(words) == 6}
        dynamic = {file for file in files if file.name.startswith(("PostgreSQL.", "mmap."))}
        assert all(file.exists() for file in dynamic)
        assert dynamic
    assert [file for file in dynamic if file.exists()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root steps down to another user")
def test_root_runs_it_from_where_the_unprivileged_user_cannot_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    hidden = copied_installation(packaged_installation(), tmp_path)
    monkeypatch.setattr(postgres, "packaged_installation", lambda: hidden)
    with PostgresServer() as server:
        assert rows(server.url, "SELECT 1") == [(1,)]
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    assert tmp_path.stat().st_mode & 0o777 == 0o700
