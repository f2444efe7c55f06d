"""`headgate plans`: the plans of the limiter."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from headgate import bootstrap
from headgate.admission.documents import document_of, plan_from
from headgate.admission.model import Plan, describe
from headgate.entrypoints.cli.recorded import recorded
from headgate.entrypoints.cli.terminal import AsJson, run, say, say_json, say_table
from headgate.entrypoints.field_names import typed_as
from headgate.entrypoints.wire import plan_json
from headgate.errors import InvalidInput
from headgate.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Show and change plans: what limits hold.")

BUCKET = "token_bucket"
NAMES = {
    "name": "NAME",
    "algorithm": "--algorithm",
    "capacity": "--capacity",
    "perSecond": "--per-second",
    "limit": "--limit",
    "window": "--window",
    "onError": "--on-error",
    "overrides": "--override",
}


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show all plans."""

    async def work(settings: Settings) -> list[Plan]:
        async with bootstrap.admission(settings) as admission:
            plans = await admission.plans.all()
            return [plans[name] for name in sorted(plans)]

    plans = run(work(Settings.load()))
    if as_json:
        say_json([plan_json(plan) for plan in plans])
        return
    say_table(
        ["name", "algorithm", "limit", "onError", "shadow", "overrides"],
        [
            [
                plan.name,
                plan.spec.algorithm,
                describe(plan.spec),
                plan.on_error or "-",
                "yes" if plan.shadow else "no",
                str(len(plan.overrides)),
            ]
            for plan in plans
        ],
    )


@app.command("set")
def set_(
    name: str,
    algorithm: Annotated[
        str | None, typer.Option(help="token_bucket, fixed_window, sliding_window or sliding_log.")
    ] = None,
    capacity: Annotated[int | None, typer.Option(help="The most tokens in a bucket.")] = None,
    per_second: Annotated[str | None, typer.Option(help="Tokens a second: 10, 0.5 or 2/3.")] = None,
    limit: Annotated[int | None, typer.Option(help="The most in a window.")] = None,
    window: Annotated[str | None, typer.Option(help="The window's length, such as PT1M or P1D.")] = None,
    on_error: Annotated[
        str | None,
        typer.Option(help="While the store can't be asked: open, closed or fallback; 'none' for the default."),
    ] = None,
    shadow: Annotated[
        bool | None, typer.Option("--shadow/--no-shadow", help="Decide and count, but never deny.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option(help='A limit for one key: KEY={"limit": 5, "window": "PT1M"}; KEY= removes it.')
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a plan, or change it: what is not given stays as it is, unless the algorithm changes."""
    given = {
        "algorithm": algorithm or (BUCKET if capacity is not None or per_second is not None else None),
        "capacity": capacity,
        "perSecond": per_second,
        "limit": limit,
        "window": window,
        "onError": on_error,
        "shadow": shadow,
    }

    async def work(settings: Settings) -> Plan:
        async with recorded(settings, "plans set", name), bootstrap.admission(settings) as admission:
            plan = plan_from(name, _changed((await admission.plans.all()).get(name), given, override or []))
            await admission.plans.put(plan)
            return plan

    with typed_as(**NAMES):
        _show(run(work(Settings.load())), as_json)


@app.command("delete")
def delete(name: str, as_json: AsJson = False) -> None:
    """Delete a plan."""

    async def work(settings: Settings) -> Plan:
        async with recorded(settings, "plans delete", name), bootstrap.admission(settings) as admission:
            return await admission.plans.delete(name)

    _show(run(work(Settings.load())), as_json)


def _changed(current: Plan | None, given: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    kept = document_of(current) if current is not None else {}
    if given["algorithm"] is not None and kept.get("algorithm") != given["algorithm"]:
        kept = {field: kept[field] for field in ("onError", "shadow") if field in kept}
    elif current is None:
        raise InvalidInput("algorithm", "is required for a new plan")
    document = kept | {field: value for field, value in given.items() if value is not None}
    if given["onError"] == "none":
        del document["onError"]
    special = dict(document.get("overrides", {}))
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidInput("overrides", f"{text!r} is not KEY=JSON")
        try:
            special[key] = json.loads(value) if value else None
        except ValueError as error:
            raise InvalidInput("overrides", f"{value!r} is not valid JSON: {error}") from None
    document["overrides"] = {key: value for key, value in special.items() if value is not None}
    return document


def _show(plan: Plan, as_json: bool) -> None:
    shown = plan_json(plan)
    if as_json:
        say_json(shown)
    else:
        for member, value in shown.items():
            say(f"{member}: {json.dumps(value) if isinstance(value, dict) else value}")
