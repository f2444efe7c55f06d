"""`paceline plans`: the plans of the limiter."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import click

from paceline.errors import ConfigurationError, InvalidInput
from paceline.integrations.app_limits import AppLimits, RouteLimits, app_limits
from paceline.integrations.limit import Limit
from paceline.limits.calendar_edges import DAYS
from paceline.limits.model import OnError, Plan, describe
from paceline.limits.plan_documents import ALGORITHMS, SEVERAL, document_of, plan_from
from paceline.limits.rates import is_rate, without_scope
from paceline.server.cli.audit import audit_change
from paceline.server.cli.parameters import Argument, Group, as_json, completing
from paceline.server.cli.read_only import read_only_settings
from paceline.server.cli.stored_names import plan_names
from paceline.server.cli.terminal import print_json, print_line, print_table, run
from paceline.server.settings import Settings
from paceline.server.shapes.limits import PlanShown
from paceline.server.wiring.limits import open_limits

BUCKET = "token_bucket"


@click.group("plans", cls=Group, no_args_is_help=True)
def app() -> None:
    """Show and change plans: what limits hold."""


@app.command("list")
@as_json
def list_(as_json: bool) -> None:
    """Show all plans."""

    async def work(settings: Settings) -> list[Plan]:
        async with open_limits(settings) as admission:
            plans = await admission.plans.all()
            return [plans[name] for name in sorted(plans)]

    with read_only_settings() as settings:
        plans = run(work(settings))
    if as_json:
        print_json([PlanShown.of_plan(plan).dump() for plan in plans])
        return
    print_table(
        ["name", "algorithm", "limit", "onError", "shadow", "overrides"],
        [
            [
                plan.name,
                plan.spec.algorithm if len(plan.specs) == 1 else SEVERAL,
                describe(*plan.specs),
                plan.on_error or "-",
                "yes" if plan.shadow else "no",
                str(len(plan.overrides)),
            ]
            for plan in plans
        ],
    )


@app.command("set")
@click.argument("name", cls=Argument, shell_complete=plan_names)
@click.argument("rate", cls=Argument, required=False)
@click.option("--rate", "rate_option", help="A rate: 10/minute, '100/hour;1000/day' or '10/minute burst 20'.")
@click.option("--algorithm", shell_complete=completing(ALGORITHMS.split(", ")), help=f"{ALGORITHMS}.")
@click.option("--capacity", type=int, help="The most tokens in a bucket.")
@click.option("--per-second", help="Tokens a second: 10, 0.5 or 2/3.")
@click.option("--limit", type=int, help="The most in a window.")
@click.option("--window", help="The window's length, such as PT1M or P1D.")
@click.option("--calendar", shell_complete=completing(DAYS), help="A fixed window by the calendar: day, week or month.")
@click.option("--zone", help="The calendar's time zone, such as Europe/Berlin; UTC if not given.")
@click.option("--expires", help="After how long a place counts as dead, with concurrency; PT30S if not given.")
@click.option("--burst", type=int, help="How many may come at once, with gcra.")
@click.option(
    "--on-error",
    shell_complete=completing([*OnError, "none"]),
    help="While the store can't be reached: open, closed or fallback; 'none' for the default.",
)
@click.option("--shadow/--no-shadow", default=None, help="Decide and count, but never deny.")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    help='A limit for one key: KEY=5/minute or KEY={"limit": 5, "window": "PT1M"}; KEY= removes it.',
)
@as_json
def set_(
    name: str,
    rate: str | None,
    rate_option: str | None,
    algorithm: str | None,
    capacity: int | None,
    per_second: str | None,
    limit: int | None,
    window: str | None,
    calendar: str | None,
    zone: str | None,
    expires: str | None,
    burst: int | None,
    on_error: str | None,
    shadow: bool | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a plan, or change it: what is not given stays as it is, unless the algorithm changes.

    RATE is a rate such as 10/minute, instead of an algorithm and its numbers.
    """
    if rate is not None and rate_option is not None:
        raise InvalidInput("rate", "is given twice; give it once")
    given = {
        "rate": rate if rate is not None else rate_option,
        "algorithm": algorithm or (BUCKET if capacity is not None or per_second is not None else None),
        "capacity": capacity,
        "perSecond": per_second,
        "limit": limit,
        "window": window,
        "calendar": calendar,
        "zone": zone,
        "expires": expires,
        "burst": burst,
        "onError": on_error,
        "shadow": shadow,
    }

    async def work(settings: Settings) -> Plan:
        async with audit_change(settings, "plans set", name), open_limits(settings) as admission:
            plan = plan_from(name, _changed((await admission.plans.all()).get(name), given, overrides))
            await admission.plans.put(plan)
            return plan

    _show(run(work(Settings.load())), as_json)


@app.command("delete")
@click.argument("name", cls=Argument, shell_complete=plan_names)
@as_json
def delete(name: str, as_json: bool) -> None:
    """Delete a plan."""

    async def work(settings: Settings) -> Plan:
        async with audit_change(settings, "plans delete", name), open_limits(settings) as admission:
            return await admission.plans.delete(name)

    _show(run(work(Settings.load())), as_json)


@app.command("lint")
@click.argument("application", cls=Argument, metavar="MODULE:NAME")
@click.option("--strict", is_flag=True, help="A route without a limit is an error, too.")
@as_json
def lint(application: str, strict: bool, as_json: bool) -> None:
    """Show the routes of a web application with their plans and keys, and what is wrong with them.

    MODULE:NAME is the application: shop:app, or project.wsgi:application for Django. A rule that matches no route and a
    plan that does not exist are errors, with exit status 1.
    """
    limits = app_limits(_load(application))
    if as_json:
        print_json(_lint_document(limits))
    else:
        rows = [row for route in limits.routes for row in _rows(route)]
        print_table(["method", "route", "plans", "key", "from"], rows)
        for rule in limits.unmatched:
            print_line(f"error: {rule!r} matches no route, so it limits nothing")
        for problem in limits.unknown:
            print_line(f"error: {problem}")
        for route in limits.unlimited:
            print_line(f"{'error' if strict else 'note'}: {route.path} has no limit")
    if limits.unmatched or limits.unknown or (strict and limits.unlimited):
        raise SystemExit(1)


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`: finds modules of the working directory
    try:
        return getattr(import_module(module), attribute or "app")
    except Exception as error:
        raise ConfigurationError("MODULE:NAME", f"{name!r} can't be loaded: {error}") from error


def _rows(route: RouteLimits) -> list[list[str]]:
    start = [" ".join(route.methods) or "*", route.path]
    rows = [[*start, _plans_of(limit), limit.key.source, source] for limit, source in route.limits]
    return rows or [[*start, "-", "-", "exempt" if route.exempt else "-"]]


def _plans_of(limit: Limit) -> str:
    return ", ".join(_plans_shown(limit))


def _plans_shown(limit: Limit) -> list[str]:
    return [*map(without_scope, limit.plans)] or [f"{limit.label}()"]


def _lint_document(limits: AppLimits) -> dict[str, Any]:
    return {
        "routes": [
            {
                "path": route.path,
                "methods": route.methods,
                "exempt": route.exempt,
                "limits": [
                    {"plans": _plans_shown(limit), "key": limit.key.source, "from": source}
                    for limit, source in route.limits
                ],
            }
            for route in limits.routes
        ],
        "unmatchedRules": [repr(rule) for rule in limits.unmatched],
        "unknownPlans": limits.unknown,
        "unlimitedRoutes": [route.path for route in limits.unlimited],
    }


def _changed(current: Plan | None, given: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    kept = document_of(current) if current is not None else {}
    if given["rate"] is not None and given["algorithm"] is None and kept.get("algorithm") != "gcra":
        kept = {field: kept[field] for field in ("onError", "shadow", "overrides") if field in kept}
    elif given["algorithm"] is not None and kept.get("algorithm") != given["algorithm"]:
        kept = {field: kept[field] for field in ("onError", "shadow") if field in kept}
    elif current is None:
        raise InvalidInput("algorithm", "is required for a new plan; or give a rate such as 10/minute")
    if given["window"] is not None or given["calendar"] is not None:
        kept = {field: value for field, value in kept.items() if field not in ("window", "calendar", "zone")}
    document = kept | {field: value for field, value in given.items() if value is not None}
    if given["onError"] == "none":
        del document["onError"]
    special = dict(document.get("overrides", {}))
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidInput("overrides", f"{text!r} is not KEY=JSON")
        try:
            special[key] = value if is_rate(value) else json.loads(value) if value else None
        except ValueError as error:
            raise InvalidInput("overrides", f"{value!r} is not valid JSON: {error}") from None
    document["overrides"] = {key: value for key, value in special.items() if value is not None}
    return document


def _show(plan: Plan, as_json: bool) -> None:
    document = PlanShown.of_plan(plan).dump()
    if as_json:
        print_json(document)
    else:
        for member, value in document.items():
            print_line(f"{member}: {json.dumps(value) if isinstance(value, dict | list) else value}")
