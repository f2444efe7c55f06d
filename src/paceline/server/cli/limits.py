"""`paceline limits`: may this run now?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

import click

from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision
from paceline.server.cli.parameters import Argument, Group, as_json
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.stored_names import plan_names
from paceline.server.cli.terminal import print_json, print_line, run
from paceline.server.settings import Settings
from paceline.server.shapes.limits import dump_decision
from paceline.server.wiring.limits import open_limits

T = TypeVar("T")

key_argument = click.argument("key", cls=Argument)
plans_option = click.option(
    "--plan",
    "plans",
    multiple=True,
    required=True,
    help="A plan that must have room; give it again for more.",
    shell_complete=plan_names,
)
cost_option = click.option("--cost", type=int, default=1, help="How much to charge.")


@click.group("limits", cls=Group, no_args_is_help=True)
def app() -> None:
    """Query the limiter. Exit status 0 if allowed, 1 if denied."""


@app.command("acquire")
@key_argument
@plans_option
@cost_option
@as_json
def acquire(key: str, plans: tuple[str, ...], cost: int, as_json: bool) -> None:
    """Charge a cost to a key, if every plan has room for it."""
    _print_decision(_call(lambda limiter: limiter.acquire(key, plans, cost)), as_json)


@app.command("peek")
@key_argument
@plans_option
@cost_option
@as_json
def peek(key: str, plans: tuple[str, ...], cost: int, as_json: bool) -> None:
    """See whether there would be room; charges nothing."""
    _print_decision(_call(lambda limiter: limiter.peek(key, plans, cost), only_reads=True), as_json)


@app.command("refund")
@key_argument
@plans_option
@cost_option
@as_json
def refund(key: str, plans: tuple[str, ...], cost: int, as_json: bool) -> None:
    """Give a cost back."""

    async def work(limiter: AsyncLimiter) -> Decision:
        await limiter.refund(key, plans, cost)
        return await limiter.peek(key, plans)

    left = _call(work)
    print_json(dump_decision(left)) if as_json else print_line(f"gave {cost} back")


@app.command("reset")
@key_argument
@plans_option
@as_json
def reset(key: str, plans: tuple[str, ...], as_json: bool) -> None:
    """Make a key as new."""

    async def work(limiter: AsyncLimiter) -> Decision:
        await limiter.reset(key, plans)
        return await limiter.peek(key, plans)

    left = _call(work)
    print_json(dump_decision(left)) if as_json else print_line("as new")


def _call(call: Callable[[AsyncLimiter], Awaitable[T]], *, only_reads: bool = False) -> T:
    async def work(settings: Settings) -> T:
        async with open_limits(settings) as admission:
            return await call(admission.limiter)

    with read_only_settings() if only_reads else nullcontext(Settings.load()) as settings:
        return run(work(settings))


def _print_decision(decision: Decision, as_json: bool) -> None:
    if as_json:
        print_json(dump_decision(decision))
    elif decision.allowed:
        print_line(f"allowed: plan {decision.plan} has {decision.remaining} of {decision.limit} left")
    else:
        print_line(
            f"denied: plan {decision.plan} has {decision.remaining} of {decision.limit} left; "
            f"retry after {decision.retry_after:g} s"
        )
    if not decision.allowed:
        raise click.exceptions.Exit(1)
