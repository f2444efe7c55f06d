"""The figures in README and docs, made from the stored results.

A page holds blocks between `<!-- benchmarks: NAME -->` and `<!-- /benchmarks -->`. `python -m benchmarks --render`
fills them; nothing between the marks is written by hand. A test compares them with the stored results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, Target
from benchmarks.results import Result, figure, judged, load
from benchmarks.scale import answers
from benchmarks.scale.answers import DAILY, DAY_SECONDS, PEAK, saturated

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/reference/benchmarks.md", "docs/explanation/scale.md", "docs/explanation/payments.md")
BLOCK = re.compile(r"(<!-- benchmarks: ([\w-]+) -->\n).*?(<!-- /benchmarks -->)", re.DOTALL)
Results = Mapping[str, Result]
NOT_MEASURED = "not measured"

AVERAGE = DAILY / DAY_SECONDS

ORDER = (
    "admission",
    "slots",
    "slot_replan",
    "dispatch",
    "tasks",
    "lanes",
    "row_versions",
    "sqlite",
    "downstream",
    "payments",
    "sms",
    "envoy",
    "console",
    "storage",
    "idle",
    "command_line",
    "scale",
)

README = (
    ("admission", "memory, hot key, one plan", "decisions in memory, hot key", ""),
    ("admission", "Redis, async, 64 tasks, one loop", "decisions in Redis, 64 tasks on one key", ""),
    ("admission", "FastAPI endpoint with a limiter", "a FastAPI endpoint with a limit", "the same without"),
    ("slots", "single calls, 512 callers", "slots on PostgreSQL, 512 callers", "one transaction per event"),
    ("dispatch", "enqueue one by one, 8 callers", "enqueue on PostgreSQL, 8 callers", ""),
    ("dispatch", "claim, start, complete; no-op, in-process", "claim, start, complete, no-op work", ""),
)
"""The rows that README shows: result, row, its name there, what it stands beside if the table's word is too short."""

SCALE = (
    ("slots", "single calls, 512 callers", "book on PostgreSQL, one process, 512 callers at once"),
    ("slots", "POST /api/v1/slots, 64 connections", "book over HTTP, one worker, 64 connections"),
    ("dispatch", "enqueue one by one, 8 callers", "queue on PostgreSQL, one by one, 8 callers at once"),
    ("dispatch", "enqueue, batches of 1000", "queue on PostgreSQL, batches of 1,000"),
    ("dispatch", "claim, start, complete; no-op, in-process", "claim, run a no-op in-process, complete"),
    ("admission", "memory, hot key, one plan", "decide a limit in memory, one key"),
    ("admission", "Redis, async, 64 tasks, one loop", "decide a limit in Redis, one async process, 64 tasks"),
    ("admission", "FastAPI endpoint with a limiter", "a FastAPI endpoint with a limit, one worker"),
    ("dispatch", "Temporal: starts by the cycle, 64 concurrent", "start workflows on Temporal's development server"),
)
"""The rows that the arithmetic of scale.md stands on: result, row, its name there."""


def tables(results: Results) -> str:
    """Every stored table, with the targets that are met and missed."""
    present = [results[name] for name in (*ORDER, *sorted(set(results) - set(ORDER))) if name in results]
    rows = judged([row for result in present for row in result.rows])
    missed = [(result, row) for result in present for row in judged(result.rows) if not row.met]
    text = [f"{len(rows) - len(missed)} of {len(rows)} targets were met."]
    if missed:
        text += ["Missed:", "", *(f"- {result.name}: {_missed(row)}" for result, row in missed)]
    for result in present:
        for table in result.tables:
            text += ["", f"## {table.title}", "", measured_on(result), ""]
            text += _table(("work", "paceline", "beside", "ratio (spread)", "target", ""), map(_cells, table.rows))
            text += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join(text)


def readme(results: Results) -> str:
    """The few rows that README shows."""
    lines = []
    for name, work, shown, beside in README:
        row = results[name].measured_row(work)
        if row is None:
            lines.append((shown, NOT_MEASURED, beside, "–"))
            continue
        ratio = f"{row.ratio.median:.2g}" if row.ratio.median < 1 else f"{row.ratio.median:.1f}"
        verdict = "" if row.met else f" (missed: {row.target})"
        lines.append((shown, row.ours, beside or row.against, ratio + verdict))
    first = results[README[0][0]]
    where = f"{first.machine['cores']} cores ({first.machine['processor']}), which clients and servers share"
    days = sorted({f"{results[name].measured:%Y-%m-%d}" for name, *_ in README})
    return "\n".join(
        [f"On {where}, {' and '.join(days)}:", "", *_table(("work", "paceline", "beside", "ratio"), lines)]
    )


def scale_figures(results: Results) -> str:
    """What the arithmetic of scale.md stands on, and the share of it that a hundred million a day are."""
    lines = []
    for name, work, shown in SCALE:
        row = results[name].measured_row(work)
        if row is None:
            lines.append((shown, NOT_MEASURED, "–", "–"))
            continue
        rate = figure(row.ours)
        lines.append((shown, row.ours, _share(AVERAGE / rate), _share(PEAK / rate)))
    head = ("work", "measured", f"{AVERAGE:,.0f} a second", f"{PEAK:,.0f} a second")
    return "\n".join(_table(head, lines))


def scale_growth(results: Results) -> str:
    """What a backlog adds to a booking."""
    row = results["slots"].measured_row("growth: behind 100,000 full windows")
    if row is None:
        return "That was not measured in the last run."
    ratio = row.ratio.median
    return f"Behind 100,000 full windows a booking took {ratio:.2f} times as long as behind 10."


def scale_bytes(results: Results) -> str:
    """What a row takes, and what a day of them takes."""
    storage = results["storage"]
    lines = []
    for row in storage.rows:
        size = figure(row.ours)
        lines.append((row.work, f"{size:.0f}", f"{size * DAILY / 1e9:,.1f} GB"))
    key = results["admission"].measured_row("bytes a key")
    shown = NOT_MEASURED if key is None else f"{figure(key.ours):.0f}"
    lines.append(("a limit's state in memory, beside the key", shown, "–"))
    return "\n".join(_table(("row", "bytes, with its indexes", "100 million of them"), lines))


def payments_speed(results: Results) -> str:
    """The rows of the payments tables, for the page that explains them."""
    result = results["payments"]
    lines = [(row.work.strip(), row.ours, row.against, _verdict(row)) for row in result.rows]
    return "\n".join([measured_on(result), "", *_table(("work", "paceline", "beside", ""), lines)])


def scale_comparison(results: Results) -> str:
    """The simulation beside a real run."""
    result = results["scale"]
    rows = result.tables[1].rows
    lines = [(row.work, row.ours, row.against.removeprefix("measured "), str(row.ratio), _verdict(row)) for row in rows]
    head = ("", "predicted", "measured", "ratio (spread)", "within 20 %")
    return "\n".join([measured_on(result), "", *_table(head, lines)])


def scale_workers(_: Results) -> str:
    """The peak, by the number of workers; then the rest of the day."""
    simulated = answers.load()
    lines = [_simulated(outcome) for outcome in (*simulated["workers"], *simulated["quiet"])]
    head = ("calls a second", "workers", "answered", "a worker's core", "the row", "database", "connections in use")
    return "\n".join(_table((*head, "p50", "p99", "p99.9", "gives way"), lines))


def scale_rates(_: Results) -> str:
    """What gives way when the rate grows and workers do not: with one config, and with several."""
    lines = []
    for configs in (1, answers.SEVERAL):
        outcomes = [outcome for outcome in answers.load()["rates"] if outcome["configs"] == configs]
        most = max(outcomes, key=lambda outcome: float(outcome["answered"]))
        full = next((outcome for outcome in outcomes if saturated(outcome)), None)
        gives_way = "nothing" if full is None else f"{saturated(full)}, at {full['rate']:,.0f}"
        used = str(most["workers"]), f"{most['databaseCores']:.1f}", f"{most['batch']:,.0f}"
        lines.append((str(configs), f"{most['answered']:,.0f}", *used, gives_way))
    head = ("configs", "most answered a second", "workers", "cores of the database", "calls in a batch", "gives way")
    return "\n".join(_table(head, lines))


def scale_day(_: Results) -> str:
    """What waits for its time, by the rate of the downstream."""
    lines = [
        (
            f"{day['rate']:,} a second",
            f"{day['most'] / 1e6:,.1f} million" if day["most"] else "none",
            _hours(day["longestSeconds"]) if day["most"] else "–",
            _emptied(day),
        )
        for day in answers.load()["downstream"]
    ]
    head = ("the downstream takes", "wait at most", "the longest wait", "empty again after the peak began")
    return "\n".join(_table(head, lines))


BLOCKS: dict[str, Callable[[Results], str]] = {
    "tables": tables,
    "readme": readme,
    "scale-figures": scale_figures,
    "scale-growth": scale_growth,
    "scale-bytes": scale_bytes,
    "scale-comparison": scale_comparison,
    "scale-workers": scale_workers,
    "scale-rates": scale_rates,
    "scale-day": scale_day,
    "payments-speed": payments_speed,
}


def filled(text: str, results: Results) -> str:
    """The page with its blocks as the results say.

    Raises:
        KeyError: a block has a name that nothing makes.
    """
    return BLOCK.sub(lambda block: f"{block[1]}{BLOCKS[block[2]](results)}\n{block[3]}", text)


def render() -> list[str]:
    """Fills the blocks of every page; the names of those that changed."""
    results, changed = load(), []
    for name in PAGES:
        page = ROOT / name
        before = page.read_text("utf-8")
        after = filled(before, results)
        if after != before:
            page.write_text(after, "utf-8")
            changed.append(name)
    return changed


def measured_on(result: Result) -> str:
    """One line: when, on what, with which versions."""
    machine = result.machine
    where = f"{machine['cores']} cores ({machine['processor']}), {machine['memoryGiB']} GiB, {machine['system']}"
    where += "" if result.load is None else f", load average {result.load:g}"
    used = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    return f"Measured {result.measured:%Y-%m-%d %H:%M} UTC on {where}; {used}."


def _cells(row: Row) -> Sequence[str]:
    work = f"… {row.work.strip()}" if row.work.startswith(" ") else row.work
    return (work, row.ours, row.against, str(row.ratio), str(row.target), _verdict(row))


def _verdict(row: Row) -> str:
    if row.target == Target():
        return ""
    return "met" if row.met else "**missed**"


def _missed(row: Row) -> str:
    return f"{row.work.strip()}: {row.ratio} instead of {row.target}"


def _simulated(outcome: Mapping[str, Any]) -> Sequence[str]:
    delays = [_delay(outcome[name]) for name in ("p50", "p99", "p999")]
    return (
        f"{outcome['rate']:,.0f}",
        str(outcome["workers"]),
        f"{outcome['answered']:,.0f}",
        _share(outcome["worker"]),
        _share(outcome["row"]),
        f"{outcome['databaseCores']:.2f} cores",
        f"{outcome['connections']:.1f}",
        *delays,
        saturated(outcome),
    )


def _emptied(day: Mapping[str, Any]) -> str:
    if not day["most"]:
        return "–"
    return "the next day" if day["emptyAgainSeconds"] is None else _hours(day["emptyAgainSeconds"])


def _delay(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _hours(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def _share(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *lines]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]
