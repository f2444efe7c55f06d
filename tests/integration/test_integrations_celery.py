"""Celery tasks behind limits and slots, with a real worker and Redis as the broker."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from paceline import (
    BlockingSlotScheduler,
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Limiter,
    Plan,
    RateLimitExceeded,
    WindowPolicy,
)

celery = pytest.importorskip("celery")
pytest.importorskip("redis")

from celery import signals  # noqa: E402 - celery may be absent
from celery.contrib.testing.worker import start_worker  # noqa: E402
from kombu import pools  # noqa: E402

from paceline.integrations.celery import rate_limit, slotted  # noqa: E402
from tests.acceptance.service import until  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    plans = [
        Plan("three", FixedWindow(limit=3, window="PT1S")),
        Plan("one at once", Concurrency(1, expires="PT10M")),
        Plan("few", FixedWindow(limit=3, window="P1D")),
        Plan("hundred", FixedWindow(limit=100, window="P1D")),
        Plan("places", Concurrency(9), overrides={"all": FixedWindow(limit=3, window="P1D")}),
        Plan("many", FixedWindow(limit=99, window="P1D"), overrides={"all": Concurrency(1, expires="PT10M")}),
    ]
    with Limiter("memory://", plans=plans) as limiter:
        yield limiter


@pytest.fixture
def app(redis_url: str) -> Iterator[Any]:
    app = celery.Celery("letters", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.worker_hijack_root_logger = False
    yield app
    # Celery leaves sockets to the garbage collector, which would warn in another test.
    app.backend.result_consumer.stop()
    app.backend.client.connection_pool.disconnect()
    app.close()
    pools.reset()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del app
        gc.collect()


def keep_logging(**_: Any) -> None:
    """With a handler of this signal Celery does not set up logging, which would silence the root logger for good."""


@contextmanager
def working(app: Any) -> Iterator[None]:
    level = logging.getLogger().level
    signals.setup_logging.connect(keep_logging)
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        yield
    signals.setup_logging.disconnect(keep_logging)
    logging.captureWarnings(False)
    assert logging.getLogger().level == level


def test_calls_beyond_the_limit_run_later_and_cost_no_retry(app: Any, limiter: Limiter) -> None:
    ran: list[tuple[str, float, int]] = []
    all_ran = threading.Event()

    @rate_limit(limiter, "three", key=lambda number: "all")
    @app.task(bind=True, max_retries=0, name="send")  # type: ignore[untyped-decorator]
    def send(self: Any, number: int) -> int:
        ran.append((self.request.id, time.monotonic(), self.request.retries))
        if len(ran) == 7:
            all_ran.set()
        return number

    with working(app):
        results = [send.delay(number) for number in range(7)]
        assert all_ran.wait(60)
        assert [result.get(timeout=30) for result in results] == list(range(7))
    assert sorted(task_id for task_id, _, _ in ran) == sorted(result.id for result in results)
    assert {retries for _, _, retries in ran} == {0}
    times = sorted(at for _, at, _ in ran)
    assert times[3] - times[0] > 0.5, "the fourth waited for the next window"


def test_the_function_of_a_task_can_be_limited_too(app: Any, limiter: Limiter) -> None:
    @app.task(name="plain")  # type: ignore[untyped-decorator]
    @rate_limit(limiter, "three", key="all", cost=lambda units: units, wait=30)
    def plain(units: int) -> int:
        return units

    with working(app):
        results = [plain.delay(3) for _ in range(2)]
        assert [result.get(timeout=60) for result in results] == [3, 3]


@pytest.mark.parametrize(
    ("concurrency", "pool", "warns"), [(3, "prefork", True), (1, "prefork", False), (3, "threads", False)]
)
def test_a_worker_of_several_processes_warns_that_they_share_nothing(
    tmp_path: Path, concurrency: int, pool: str, warns: bool
) -> None:
    (tmp_path / "letters.py").write_text(
        "import celery\n"
        "from paceline import Limiter\n"
        "from paceline.integrations.celery import rate_limit\n"
        "app = celery.Celery('letters', broker='memory://')\n"
        "@rate_limit(Limiter('memory://'), '3/minute', key='all')\n"
        "@app.task\n"
        "def send(): ...\n"
    )
    command = ["-m", "celery", "-A", "letters", "worker", "-P", pool, "-c", str(concurrency), "-l", "INFO"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen([sys.executable, *command], cwd=tmp_path, stderr=output, stdout=output)
        try:
            until(lambda: " ready." in log.read_text())
        finally:
            worker.terminate()
            worker.wait(30)
    assert ("memory:// counts for each of the server's 3 workers" in log.read_text()) == warns, log.read_text()


def test_outside_of_a_worker_a_denial_is_raised(app: Any, limiter: Limiter) -> None:
    @rate_limit(limiter, "three", key="all", cost=3)
    @app.task(name="direct")  # type: ignore[untyped-decorator]
    def direct() -> str:
        return "ran"

    assert direct.run() == "ran"
    with pytest.raises(RateLimitExceeded):
        direct.run()
    with pytest.raises(RateLimitExceeded):
        direct.apply(throw=True)


def eager(app: Any, limiter: Limiter, plans: Any, run: Callable[[str], int], **options: Any) -> Callable[[str], Any]:
    """Runs a limited task in this process: what it returns, or the error it raises."""

    @rate_limit(limiter, plans, **{"key": "all", **options})
    @app.task(name=f"eager-{uuid4().hex}")  # type: ignore[untyped-decorator]
    def task(who: str) -> int:
        return run(who)

    return lambda who: task.apply((who,), throw=True).get()


def test_the_plan_the_key_and_exemptions_depend_on_the_call(app: Any, limiter: Limiter) -> None:
    call = eager(app, limiter, lambda who: {"ada": "hundred", "bob": None}.get(who, "few"), len, key=lambda who: who)
    assert [call("ada") for _ in range(9)] == [3] * 9
    assert [call("bob") for _ in range(9)] == [3] * 9, "no plan: not limited"
    assert [call("eve") for _ in range(3)] == [3] * 3
    with pytest.raises(RateLimitExceeded):
        call("eve")
    assert limiter.exempt_calls == {"<lambda>": 9}
    admin = eager(app, limiter, "few", len, exempt=lambda who: who == "root")
    nobody = eager(app, limiter, "few", len, key=lambda who: None)
    assert [admin("root") for _ in range(5)] + [nobody("x") for _ in range(5)] == [4] * 5 + [1] * 5
    assert limiter.exempt_calls["few"] == 10
    assert limiter.peek("all", "few").remaining == 3


def test_only_failures_are_charged(app: Any, limiter: Limiter) -> None:
    def run(who: str) -> int:
        if who == "wrong":
            raise KeyError(who)
        return 1

    call = eager(app, limiter, "few", run, charge_when=lambda outcome: isinstance(outcome.error, KeyError))
    assert [call("right") for _ in range(9)] == [1] * 9
    for _ in range(3):
        with pytest.raises(KeyError):
            call("wrong")
    with pytest.raises(RateLimitExceeded):
        call("right")


def test_the_cost_is_what_the_result_says(app: Any, limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    call = eager(app, limiter, "hundred", len, cost=50, cost_of_response=lambda outcome: outcome.result)
    assert call("seven!!") == 7
    assert limiter.peek("all", "hundred").remaining == 93
    wrong = eager(app, limiter, "hundred", len, key="b", cost=50, cost_of_response=lambda outcome: "much")
    assert wrong("x") == 1, "the task has run: a wrong function breaks nothing"
    assert limiter.peek("b", "hundred").remaining == 50
    assert "could not be settled" in caplog.text


def test_an_error_and_a_worker_that_is_stopped(app: Any, limiter: Limiter) -> None:
    def run(who: str) -> int:
        raise KeyError(who) if who == "wrong" else SystemExit

    plain = eager(app, limiter, "few", run)
    by_outcome = eager(app, limiter, "few", run, key="b", charge_when=lambda outcome: outcome.error is None)
    for call, key, left in ((plain, "all", 1), (by_outcome, "b", 3)):
        with pytest.raises(KeyError):
            call("wrong")
        with pytest.raises(SystemExit):
            call("stop")
        assert limiter.peek(key, "few").remaining == left


@pytest.mark.parametrize("options", [{}, {"wait": 1}, {"charge_when": lambda outcome: True}])
def test_a_place_is_held_while_the_task_runs(app: Any, limiter: Limiter, options: Any) -> None:
    def run(who: str) -> int:
        if who == "wrong":
            raise KeyError(who)
        assert not limiter.peek("all", "one at once").allowed
        if who == "outer":
            with pytest.raises(RateLimitExceeded):
                call("inner")
        return limiter.peek("all", "few").remaining

    call = eager(app, limiter, ["one at once", "few"], run, **options)
    assert call("outer") == 2, "the call without a place was charged nothing"
    with pytest.raises(KeyError):
        call("wrong")
    assert limiter.peek("all", "one at once").allowed
    assert call("next") == 0


def test_an_override_may_be_of_another_kind_than_its_plan(app: Any, limiter: Limiter) -> None:
    call = eager(app, limiter, "places", lambda who: limiter.peek("all", "places").remaining)
    assert [call("one") for _ in range(3)] == [2, 1, 0]
    with pytest.raises(RateLimitExceeded):
        call("one")
    call = eager(app, limiter, "many", lambda who: limiter.peek("all", "many").remaining)
    assert [call("one") for _ in range(3)] == [0, 0, 0]
    assert limiter.peek("all", "many").remaining == 1


@pytest.mark.parametrize("options", [{}, {"charge_when": lambda outcome: outcome.result != 1}])
def test_exact_with_64_callers(app: Any, limiter: Limiter, options: Any) -> None:
    @rate_limit(limiter, "hundred", key="all", cost=20, **options)
    def run(who: int) -> int:
        return who

    ended: Counter[str] = Counter()

    def call() -> None:
        try:
            run(2)
            ended["ran"] += 1
        except RateLimitExceeded:
            ended["denied"] += 1

    threads = [threading.Thread(target=call) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == {"ran": 5, "denied": 59}


def test_a_wrong_limit_is_refused_when_it_is_made(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError):
        rate_limit(limiter, "nothing", key="x")
    with pytest.raises(ConfigurationError, match="at least one plan"):
        rate_limit(limiter, [], key="x")
    with pytest.raises(ConfigurationError, match="wait"):
        rate_limit(limiter, "three", key="x", wait=-1)
    with pytest.raises(ConfigurationError, match="outcome"):
        rate_limit(limiter, "three", key="x", wait=1, charge_when=lambda outcome: True)


def test_calls_run_at_their_slots_and_an_id_keeps_its_own(app: Any, tmp_path: Any) -> None:
    sent: list[tuple[str, datetime]] = []

    @app.task(name="slotted")  # type: ignore[untyped-decorator]
    def send(number: int) -> int:
        return number

    def record(args: Any = None, kwargs: Any = None, *, task_id: str, eta: datetime, **_options: Any) -> str:
        sent.append((task_id, eta))
        return task_id

    start = datetime.now(UTC) + timedelta(hours=1)
    with BlockingSlotScheduler(f"sqlite:///{tmp_path / 'slots.db'}") as slots:
        slots.configure("letters", WindowPolicy(max_per_window=2, window="PT4S"))
        call = slotted(send, slots, "letters")
        send.apply_async = record
        for number in range(6):
            call.apply_async(args=[number], task_id=f"letter-{number}", eta=start)
        call.apply_async(args=[0], task_id="letter-0", eta=start)
        assert call.delay(1) != call.delay(1)
    assert sent[6] == sent[0]
    windows = [int(eta.timestamp()) // 4 for _, eta in sent[:6]]
    assert max(windows.count(window) for window in windows) <= 2
    assert min(eta for _, eta in sent[:6]) >= start


def test_a_slotted_call_runs_on_a_worker(app: Any, tmp_path: Any) -> None:
    @app.task(name="now")  # type: ignore[untyped-decorator]
    def send(number: int) -> int:
        return number * 2

    with BlockingSlotScheduler(f"sqlite:///{tmp_path / 'slots.db'}") as slots:
        slots.configure("default", WindowPolicy(max_per_window=100, window="PT0.1S"))
        with working(app):
            assert slotted(send, slots).delay(21).get(timeout=60) == 42
