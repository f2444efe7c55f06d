"""The metrics' reference, from the observers that count."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry

import paceline.server.metrics

APPLICATIONS = {"payments": "paceline_payments.service.metrics", "sms": "paceline_sms.service.metrics"}


def page() -> str:
    """One table for each observer."""
    lines: list[str] = []
    own = {
        entry.name: f"paceline.server.metrics.{entry.name}"
        for entry in pkgutil.iter_modules(paceline.server.metrics.__path__)
    }
    for title, name in sorted({**own, **APPLICATIONS}.items()):
        module = importlib.import_module(name)
        rows = list(_metrics(module))
        if rows:
            about = (inspect.getdoc(module) or "").partition("\n\n")[0]
            lines += [f"## {title.replace('_', ' ').capitalize()}", "", " ".join(about.split()), ""]
            lines += ["| metric | type | labels | |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def collectors(observer: type) -> list[Any]:
    """What an observer registers."""
    registry = CollectorRegistry()
    observer(registry)
    return sorted(registry._collector_to_names, key=lambda collector: collector._name)


def _metrics(module: Any) -> Iterator[str]:
    for name, observer in inspect.getmembers(module, inspect.isclass):
        if observer.__module__ == module.__name__ and name.endswith("Metrics"):
            for collector in collectors(observer):
                kind = collector._type
                shown = collector._name + ("_total" if kind == "counter" else "")
                labels = ", ".join(f"`{label}`" for label in collector._labelnames)
                yield f"| `{shown}` | {kind} | {labels} | {collector._documentation} |"
