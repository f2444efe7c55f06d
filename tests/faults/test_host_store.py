"""`host://`: processes that share limits on one host, are forked, stopped and killed, and find no room."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

from paceline import AsyncLimiter, Limiter, Plan
from paceline.errors import StoreRefused
from paceline.limits.model import Charge, FixedWindow, Rule, SlidingLog
from paceline.limits.ports import Hold
from paceline.limits.stores import host_table
from paceline.limits.stores.host import HostLimitStore
from tests.acceptance.service import until
from tests.effort import is_thorough
from tests.faults.host_workers import PAIR
from tests.interruptions import interrupt_often

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

REPOSITORY = Path(__file__).parents[2]
DAY = FixedWindow(5, "P1D")


@pytest.fixture
def url() -> Iterator[str]:
    """A store of one megabyte."""
    name = f"test-{uuid4().hex}"
    yield f"host://{name}?megabytes=1"
    Path(HostLimitStore(name).path).unlink(missing_ok=True)


def file_of(url: str) -> Path:
    return Path(HostLimitStore(url.removeprefix("host://").partition("?")[0]).path)


def ask(port: int) -> tuple[int, int]:
    """The status of an answer, and the process it is from. A connection that waited for a worker that was killed is
    made again: no worker has seen its request."""
    while True:
        with suppress(ConnectionResetError, ConnectionRefusedError):
            return _ask(port)


def _ask(port: int) -> tuple[int, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, int(response.headers["X-Worker"])


def ask_often(port: int, count: int) -> list[tuple[int, int]]:
    with ThreadPoolExecutor(8) as callers:
        return list(callers.map(lambda _: ask(port), range(count)))


@contextmanager
def uvicorn(url: str, workers: int, log: Path) -> Iterator[int]:
    """The port of uvicorn with the site in tests/faults/host_workers.py."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening, log.open("wb") as output:
        # Bound here: no other program can have the port, and the first request waits for the first worker.
        command = ["--factory", "tests.faults.host_workers:app", "--workers", str(workers), "--log-level", "warning"]
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", *command, "--fd", str(listening.fileno())],
            cwd=REPOSITORY,
            env=os.environ | {"HOST_STORE": url},
            stderr=output,
            start_new_session=True,
            pass_fds=[listening.fileno()],
        )
        try:
            yield listening.getsockname()[1]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def gunicorn(url: str) -> Iterator[int]:
    """The port of gunicorn with four workers, forked when the store was open."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        number = listening.fileno()
        command = ["--workers", "4", "--preload", "--bind", f"fd://{number}", "tests.faults.host_workers:wsgi()"]
        with _started("gunicorn", *command, url=url, pass_fds=[number]):
            yield listening.getsockname()[1]


@contextmanager
def granian(url: str) -> Iterator[int]:
    """The port of granian with four workers, which are replaced when they die."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["--interface", "asgi", "--host", "127.0.0.1", "--port", str(port), "--workers", "4"]
    command += ["--respawn-failed-workers", "--factory", "--log-level", "error", "tests.faults.host_workers:app"]
    with _started("granian", *command, url=url):
        until(lambda: _answers(port))
        yield port


@contextmanager
def _started(module: str, *arguments: str, url: str, pass_fds: Sequence[int] = ()) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"HOST_STORE": url},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=pass_fds,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@contextmanager
def site(kind: str, url: str, log: Path) -> Iterator[int]:
    """The port of a site with four workers."""
    if kind == "uvicorn":
        with uvicorn(url, 4, log) as port:
            yield port
        return
    if kind in ("gunicorn", "granian"):
        with {"gunicorn": gunicorn, "granian": granian}[kind](url) as port:
            yield port
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.host_workers", kind, url],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("kind", ["uvicorn", "gunicorn", "granian", "flask", "django", "multiprocessing"])
def test_four_workers_admit_exactly_the_limit_though_one_is_killed(url: str, kind: str, tmp_path: Path) -> None:
    with site(kind, url, tmp_path / "log") as port:
        answers = ask_often(port, 10)
        os.kill(answers[0][1], signal.SIGKILL)
        answers += ask_often(port, 150)
    assert [status for status, _ in answers].count(200) == 20
    assert {status for status, _ in answers} == {200, 429}
    assert len({worker for _, worker in answers}) > 1


def test_celerys_prefork_workers_admit_exactly_the_limit_though_one_is_killed(url: str, tmp_path: Path) -> None:
    broker, answers = tmp_path / "broker", tmp_path / "answers"
    broker.mkdir()
    answers.touch()
    environment = os.environ | {"HOST_STORE": url, "BROKER": str(broker), "ANSWERS": str(answers)}
    celery = [sys.executable, "-m", "celery", "-A", "tests.faults.host_tasks"]

    def ask_tasks(count: int) -> list[list[str]]:
        """The answers of all tasks so far, after `count` more."""
        expected = len(answers.read_text().splitlines()) + count
        code = f"from tests.faults.host_tasks import ask\nfor _ in range({count}): ask.delay()"
        subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, env=environment, check=True)
        until(lambda: len(answers.read_text().splitlines()) == expected)
        return [line.split() for line in answers.read_text().splitlines()]

    worker = subprocess.Popen(
        [*celery, "worker", "--pool", "prefork", "--concurrency", "4", "--loglevel", "ERROR", "--without-mingle"],
        cwd=REPOSITORY,
        env=environment,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        first = ask_tasks(10)
        Path(f"{answers}.deadly").touch()  # the next one dies, and its task goes to another
        every = ask_tasks(150)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    assert [status for _, status in every].count("200") == 20
    assert not Path(f"{answers}.deadly").exists()
    assert len({process for process, _ in first}) > 1
    assert len({process for process, _ in every}) > 2


@pytest.mark.parametrize(("workers", "warnings"), [(1, 0), (3, 1)])
def test_the_first_of_several_workers_warns_that_they_share_nothing(
    tmp_path: Path, workers: int, warnings: int
) -> None:
    log = tmp_path / "log"
    with uvicorn("memory://", workers, log) as port:
        answering = set()
        until(lambda: answering.add(ask(port)[1]) or len(answering) == workers)  # type: ignore[func-returns-value]
    assert log.read_text().count("memory:// counts for each") == warnings
    assert log.read_text().count(f"the server's {workers} workers") == warnings


def test_processes_killed_while_they_charge_leave_whole_charges_and_no_lock(url: str) -> None:
    """A charge is two states and a hold. Kills at random moments, while others charge."""
    choice = random.Random(2026)
    printed = kills = 0
    for _ in range(40 if is_thorough() else 4):
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.host_workers", "charge", url],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(choice.randrange(1, 300))]
            process.kill()
            printed += int([*lines, *process.stdout][-1])
            process.stdout.close()
            assert process.wait() == -signal.SIGKILL
            kills += 1
        with Limiter(url, plans=PAIR, on_error="closed") as judge:
            used = {
                plan.name: [1_000_000 - judge.peek(f"pair:{pair}", plan.name).remaining for pair in range(7)]
                for plan in PAIR
            }
        assert used["first"] == used["second"]
        assert printed <= sum(used["first"]) <= printed + kills
        fresh = Limiter(url, plans=[Plan("fresh", DAY)], on_error="closed")
        assert [bool(fresh.acquire(str(kills), "fresh")) for _ in range(6)] == [True] * 5 + [False]
        fresh.close()


def in_child(work: Callable[[], int]) -> int:
    """What `work` returned in a forked child, up to 255."""
    child = os.fork()
    if child == 0:
        # Nothing may be raised here: pytest would continue in the child as well.
        try:
            os._exit(work())
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(number: int) -> None:
    """Has this process killed when it runs the given line of the table's code, counted as they are run."""
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename == host_table.__file__ and event == "line" and next(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


@pytest.mark.parametrize("full", [False, True])
def test_a_charge_is_whole_at_whichever_line_its_process_is_killed(url: str, full: bool) -> None:
    store = HostLimitStore(url.partition("?")[0].removeprefix("host://"), megabytes=1)
    first, second = (Rule(name, FixedWindow(10**6, "P1D")) for name in ("first", "second"))
    if full:
        chains = [[Charge(f"other:{number}", first)] for number in range(12_000)]
        store.decide_many(chains)

    def charge(number: int, line: int) -> int:
        die_at(line)
        # A key that is new, one that is known, and a hold.
        store.decide([Charge("both", first), Charge("both", second), Charge(f"new:{number}", first)])
        store.decide([Charge("both", first), Charge("both", second)], hold=Hold(f"hold:{number}", 10**9))
        return 0

    for line in itertools.count(1, 29 if full and not is_thorough() else 1):
        before = [store.decide([Charge("both", rule)], spend=False).remaining for rule in (first, second)]
        ended = in_child(lambda line=line: charge(line, line))  # type: ignore[misc]
        after = [store.decide([Charge("both", rule)], spend=False).remaining for rule in (first, second)]
        assert before[0] == before[1], line
        assert 0 <= before[0] - after[0] <= 2, line
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert line > 100
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_charge_is_whole_whenever_a_signal_handler_raises(url: str) -> None:
    limiter = Limiter(url, plans=PAIR, on_error="closed")
    charges = itertools.count()
    assert limiter.acquire("pair:0", ["first", "second"])
    interrupt_often(lambda: limiter.acquire(f"pair:{next(charges) % 7}", ["first", "second"]), 2_000)

    def differing() -> int:
        left = [[limiter.peek(f"pair:{pair}", plan.name).remaining for pair in range(7)] for plan in PAIR]
        return 0 if left[0] == left[1] else 1

    assert in_child(differing) == 0
    assert limiter.acquire("pair:0", ["first", "second"])
    limiter.close()


def test_a_store_that_was_open_when_its_process_forked_counts_with_its_children(url: str) -> None:
    limiter = Limiter(url, plans=[Plan("five", DAY)], on_error="closed")
    assert limiter.acquire("key", "five").remaining == 4
    assert in_child(lambda: limiter.acquire("key", "five").remaining) == 3
    assert limiter.acquire("key", "five").remaining == 2
    limiter.close()


def test_limiters_of_one_process_share_a_name_and_close_apart(url: str) -> None:
    one, other = (Limiter(url, plans=[Plan("five", DAY)], on_error="closed") for _ in range(2))
    assert one.acquire("key", "five").remaining == 4
    assert other.acquire("key", "five").remaining == 3
    one.close()
    assert other.acquire("key", "five").remaining == 2
    other.close()
    assert one.acquire("key", "five").remaining == 1
    one.close()


def test_a_stopped_process_that_holds_the_lock_is_an_outage(url: str) -> None:
    script = (
        "import os, signal, sys; from paceline.limits.stores.host_table import HostTable\n"
        "HostTable(sys.argv[1], 1).try_run(lambda table, now_us: os.kill(os.getpid(), signal.SIGSTOP))"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(file_of(url))])
    assert os.WIFSTOPPED(os.waitpid(holder.pid, os.WUNTRACED)[1])
    limiter = AsyncLimiter(url, plans=[Plan("five", DAY)], deadline=0.05)
    with asyncio.Runner() as runner, Limiter(url, plans=[Plan("five", DAY)], on_error="closed", deadline=0.05) as other:
        assert other.acquire("key", "five").reason == "FAIL_CLOSED"
        assert runner.run(limiter.acquire("key", "five")).reason == "FAIL_OPEN"
        holder.kill()
        holder.wait()
        assert other.acquire("key", "five").remaining == 4
        assert runner.run(limiter.acquire("key", "five")).remaining == 3
        runner.run(limiter.close())


def test_only_the_user_can_read_it_and_nobody_elses_file_is_used(url: str, tmp_path: Path) -> None:
    with Limiter(url) as limiter:
        limiter.acquire("key", "5/day")
    status = file_of(url).stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == 1 << 20
    store = HostLimitStore("planted", directory=str(tmp_path))
    Path(store.path).symlink_to(file_of(url))
    limiter = Limiter(store, on_error="closed")
    assert limiter.acquire("key", "5/day").reason == "FAIL_CLOSED"
    Path(store.path).unlink()
    if os.geteuid() == 0:
        Path(store.path).touch()
        os.chown(store.path, 12345, 12345)
        with pytest.raises(StoreRefused, match="belongs to user 12345"):
            limiter.acquire("key", "5/day")


def test_a_full_table_drops_expired_keys_first_and_then_those_not_used_lately(url: str) -> None:
    store = HostLimitStore(url.partition("?")[0].removeprefix("host://"), megabytes=1)
    short, daily = Rule("short", FixedWindow(5, "PT0.000001S")), Rule("daily", DAY)
    for number in range(100):
        assert store.decide([Charge(f"quota:{number}", daily, 5)]).allowed
    for number in range(15_000):
        store.decide([Charge(f"passing:{number}", short)])
    assert not any(store.decide([Charge(f"quota:{number}", daily)], spend=False).allowed for number in range(100))
    for number in range(15_000):
        store.decide([Charge(f"flood:{number}", daily)])
        if number % 100 == 0:
            assert not store.decide([Charge("quota:7", daily)]).allowed
    evicted = sum(
        store.decide([Charge(f"flood:{number}", daily)], spend=False).remaining == 5 for number in range(15_000)
    )
    assert 4_000 < evicted < 9_000
    assert Path(store.path).stat().st_size == 1 << 20
    store.close()


def test_states_of_any_size_share_a_full_table(url: str) -> None:
    """Each log has a hundred and more entries, in a table for some of them; they grow, move and are evicted."""
    store, now = HostLimitStore(url.partition("?")[0].removeprefix("host://"), megabytes=1), 1_900_000_000_000_000
    log, choice = Rule("log", SlidingLog(1000, "P1D")), random.Random(7)
    counts: dict[str, int] = {}
    for step in range(6_000):
        key = f"log:{choice.randrange(40)}"
        decision = store.decide([Charge(key, log)], now_us=now + step)
        assert decision.remaining in (999, 999 - counts.get(key, 0))
        counts[key] = 1000 - decision.remaining
    store.close()


def test_a_file_that_is_deleted_is_made_anew_for_all(tmp_path: Path) -> None:
    store = HostLimitStore("deleted", directory=str(tmp_path), megabytes=1)
    charge = [Charge("key", Rule("daily", DAY), 5)]
    assert store.decide(charge).allowed
    assert not store.decide(charge).allowed
    Path(store.path).unlink()
    until(lambda: store.decide(charge).allowed)
    assert in_child(lambda: store.decide(charge).allowed) == 0
    store.close()


def limited_to(megabytes: int, work: Callable[[], int]) -> int:
    """What `work` returned in a child whose files may have so many megabytes."""

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (megabytes << 20, megabytes << 20))
        return work()

    return in_child(limited)


def test_without_room_the_plans_policy_decides_and_with_little_room_the_table_is_small(tmp_path: Path) -> None:
    store = HostLimitStore("small", directory=str(tmp_path))

    def decide(on_error: str) -> int:
        decision = Limiter(store, plans=[Plan("five", DAY, on_error=on_error)]).acquire("key", "five")
        return 2 * decision.degraded + decision.allowed

    assert limited_to(0, lambda: decide("closed")) == 2
    assert limited_to(0, lambda: decide("open")) == 3
    assert Path(store.path).stat().st_size == 0
    assert limited_to(5, lambda: decide("closed")) == 1
    assert Path(store.path).stat().st_size == 4 << 20
