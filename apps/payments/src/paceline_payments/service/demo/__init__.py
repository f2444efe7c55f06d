"""`paceline demo`: a minute in the life of a payments system, embedded, without any server."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from paceline.dispatch.queue import DispatchQueue
from paceline.errors import InvalidInput
from paceline.extras import require
from paceline.server.cli.parameters import Command, as_json
from paceline.server.cli.plots import check_plot, save_plot
from paceline.server.cli.terminal import print_json, print_line, print_status, run
from paceline.server.settings import Settings
from paceline.server.wiring.queue import open_queue
from paceline.server.wiring.slots import open_slots
from paceline.slots import WindowPolicy
from paceline_payments.service.wiring.payments import Payments, open_payments
from paceline_payments.settings import PaymentSettings

if TYPE_CHECKING:
    from paceline_payments.downstream.simulator import Simulator
    from paceline_payments.model import IntakeResult, Payment
    from paceline_payments.service.demo.chaos import Chaos
    from paceline_payments.service.demo.report import Report
    from paceline_payments.service.demo.view import View

CONFIG = "demo"
WINDOW = timedelta(seconds=4)
LEAD = timedelta(seconds=3)
SHARE = 0.94
"""Slots are planned a little below the hard limit: the rate gate's safety margin and retries need the rest."""
BAD_LINES = 3


@click.command("demo", cls=Command)
@click.option("--payments", default=3000, help="How many payments want the same instant.")
@click.option("--tps", default=50, help="The downstream's hard limit in any sliding second.")
@click.option("--fail", default=0.01, help="The share of calls the downstream fails.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    default="paceline-demo.png",
    help="Where the picture goes; needs matplotlib.",
)
@click.option(
    "--chaos",
    is_flag=True,
    help="A worker is killed, the bank is down for 5 s, 3 % of its answers are lost, the kill switch is thrown; a "
    "console shows it; ends with the reconciliation.",
)
@as_json
@click.pass_context
def demo(context: click.Context, payments: int, tps: int, fail: float, plot: Path, chaos: bool, as_json: bool) -> None:
    """Send a feed of payments that all want the same second through a downstream that takes so many and no more.

    Everything runs in this process, on a database that is thrown away. Ends after about payments / tps seconds, with a
    report; the exit status is 1 if a promise was broken.
    """
    if not 1 <= payments <= 1_000_000:
        raise InvalidInput("--payments", "must be from 1 to 1000000")
    if not 1 <= tps <= 1000:
        raise InvalidInput("--tps", "must be from 1 to 1000")
    if not 0 <= fail <= 0.5:
        raise InvalidInput("--fail", "must be a share from 0 to 0.5")
    if context.get_parameter_source("plot") is not ParameterSource.DEFAULT:
        check_plot(plot, "payments")
    live = sys.stderr.isatty() and not as_json
    report = run(_run_chaos(payments, tps, live) if chaos else _run(payments, tps, fail, live))
    if as_json:
        print_json(report.shape().dump())
    else:
        for line in report.lines():
            print_line(line)
    _draw(report, plot)
    raise click.exceptions.Exit(0 if report.kept else 1)


async def _run(payments: int, tps: int, fail: float, live: bool) -> Report:
    require("the demo", "payments")
    # Imported here: the other commands need neither the bank's client nor the check of accounts.
    from paceline_payments.downstream.simulator import Behaviour, Simulator

    bank = Simulator(Behaviour(tps=tps, fail=fail, lose=fail / 2))
    with tempfile.TemporaryDirectory(prefix="paceline-demo-") as directory:
        # The user's own settings are neither read nor changed.
        settings = Settings(
            database_url=f"sqlite:///{directory}/demo.db",
            redis_url=None,
            kafka_bootstrap=None,
            temporal_address=None,
        ).with_section(PaymentSettings(config=CONFIG, tps=tps))
        async with open_slots(settings) as slots, open_queue(settings) as queue:
            await slots.configure(CONFIG, WindowPolicy(max(1, int(4 * tps * SHARE)), WINDOW, spread="even"))
            async with open_payments(settings, slots, queue, execute=True, simulator=bank) as opened:
                return await _follow(opened, queue, bank, payments, tps, live)


async def _run_chaos(payments: int, tps: int, live: bool) -> Report:
    """The same feed, executed by a worker process that calls the bank over HTTP, under faults."""
    require("the demo", "payments")
    from paceline_payments.service.demo.chaos import (
        Chaos,
        RecordingBank,
        Worker,
        compared,
        console,
        environment,
        served,
    )

    bank = RecordingBank(tps)
    with tempfile.TemporaryDirectory(prefix="paceline-demo-") as directory:
        url = f"sqlite:///{directory}/demo.db"
        settings = Settings(
            database_url=url,
            redis_url=None,
            kafka_bootstrap=None,
            temporal_address=None,
        ).with_section(PaymentSettings(config=CONFIG, tps=tps))
        async with (
            served(bank) as bank_url,
            open_slots(settings) as slots,
            open_queue(settings) as queue,
            open_payments(settings, slots, queue) as opened,
        ):
            await slots.configure(CONFIG, WindowPolicy(max(1, int(4 * tps * SHARE)), WINDOW, spread="even"))
            variables = environment(url, CONFIG, tps, bank_url)
            worker = Worker(Path(directory), variables)
            async with console(Path(directory), variables) as address:
                print_status(f"watch it in a browser, while it runs: {address}")
                await worker.start()
                chaos = Chaos(bank, queue, worker)
                watching = asyncio.create_task(worker.keep_alive())
                try:
                    report = await _follow(opened, queue, bank, payments, tps, live, chaos)
                finally:
                    watching.cancel()
                    await worker.stop()
            report.reconciliation = await compared(opened.statements, bank)
            report.late_calls = chaos.late_calls
            report.faults = chaos.faults
            return report


async def _follow(
    opened: Payments,
    queue: DispatchQueue,
    bank: Simulator,
    payments: int,
    tps: int,
    live: bool,
    chaos: Chaos | None = None,
) -> Report:
    from paceline.dispatch.status import Status
    from paceline_payments.feed import FeedFormat, initiate_feed
    from paceline_payments.model import ITEM_TYPE
    from paceline_payments.service.demo.feed import feed
    from paceline_payments.service.demo.report import Plan, Report
    from paceline_payments.service.demo.view import LiveView, PlainView

    at = _window_after(datetime.now(UTC) + LEAD)
    plan = Plan(payments, tps, at)
    view: View = LiveView(plan, bank) if live else PlainView(plan, bank)
    wrong: asyncio.Task[None] | None = None

    async def initiate(chunk: Sequence[Payment]) -> list[IntakeResult]:
        outcomes = await opened.intake.initiate(chunk)
        plan.note(outcomes)
        return outcomes

    with view:
        async for progress in initiate_feed(feed(payments, at, BAD_LINES), FeedFormat.CSV, initiate):
            plan.rejected += progress.rejected
        if chaos is not None:
            wrong = asyncio.create_task(chaos.run(at, payments, view.announce))
        deadline = asyncio.get_running_loop().time() + 60 + 3 * payments / tps
        while asyncio.get_running_loop().time() < deadline:
            stats = await queue.stats(ITEM_TYPE)
            view.show(stats)
            waiting = sum(stats.depth.get(status, 0) for status in (Status.READY, Status.CLAIMED, Status.DISPATCHED))
            if not waiting and (wrong is None or wrong.done()):
                break
            await asyncio.sleep(view.pause)
        if wrong is not None:
            wrong.cancel()  # nothing, unless the payments took so long that not all faults had their turn
            with suppress(asyncio.CancelledError):
                await wrong
        stats = await queue.stats(ITEM_TYPE)
        view.show(stats)
    return Report.of(plan, bank, await opened.store.count(), stats.depth.get(Status.DEAD_LETTER, 0))


def _window_after(moment: datetime) -> datetime:
    """The start of the next window, so that the first one is whole."""
    seconds = WINDOW.total_seconds()
    return datetime.fromtimestamp(-(-moment.timestamp() // seconds) * seconds, UTC)


def _draw(report: Report, path: Path) -> None:
    from paceline_payments.service.demo.plot import picture

    try:
        save_plot(lambda: picture(report), path)
    except ModuleNotFoundError:
        print_status("no picture: it needs matplotlib, pip install 'paceline[plot]'")
