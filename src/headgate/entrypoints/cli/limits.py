"""`headgate limits`: may this run now?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from headgate import bootstrap
from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.model import Decision
from headgate.entrypoints.cli.terminal import AsJson, run, say, say_json
from headgate.entrypoints.field_names import typed_as
from headgate.entrypoints.wire import decision_json
from headgate.settings import Settings

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Ask the limiter. Exit status 0 if allowed, 1 if denied.")

Plans = Annotated[list[str], typer.Option("--plan", help="A plan that must have room; give it again for more.")]
Cost = Annotated[int, typer.Option(help="How much to charge.")]

NAMES = {"key": "KEY", "plans": "--plan", "cost": "--cost"}


@app.command("acquire")
def acquire(key: str, plans: Plans, cost: Cost = 1, as_json: AsJson = False) -> None:
    """Charge a cost to a key, if every plan has room for it."""
    _tell(_ask(lambda limiter: limiter.acquire(key, plans, cost)), as_json)


@app.command("peek")
def peek(key: str, plans: Plans, cost: Cost = 1, as_json: AsJson = False) -> None:
    """See whether there would be room; charges nothing."""
    _tell(_ask(lambda limiter: limiter.peek(key, plans, cost)), as_json)


@app.command("refund")
def refund(key: str, plans: Plans, cost: Cost = 1) -> None:
    """Give a cost back."""
    _ask(lambda limiter: limiter.refund(key, plans, cost))
    say(f"gave {cost} back")


@app.command("reset")
def reset(key: str, plans: Plans) -> None:
    """Make a key as new."""
    _ask(lambda limiter: limiter.reset(key, plans))
    say("as new")


def _ask(question: Callable[[AsyncLimiter], Awaitable[T]]) -> T:
    async def work(settings: Settings) -> T:
        async with bootstrap.admission(settings) as admission:
            return await question(admission.limiter)

    with typed_as(**NAMES):
        return run(work(Settings.load()))


def _tell(decision: Decision, as_json: bool) -> None:
    if as_json:
        say_json(decision_json(decision))
    elif decision.allowed:
        say(f"allowed: plan {decision.plan} has {decision.remaining} of {decision.limit} left")
    else:
        say(
            f"denied: plan {decision.plan} has {decision.remaining} of {decision.limit} left; "
            f"retry after {decision.retry_after:g} s"
        )
    if not decision.allowed:
        raise typer.Exit(1)
