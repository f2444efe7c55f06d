"""Writes the Grafana dashboards of `deploy/grafana/dashboards`, one per feature.

A test compares, and requires that each metric is on one of them: run this after a change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "deploy/grafana/dashboards"
COLUMNS, WIDTH, HEIGHT = 3, 8, 7
SPAN = "[$__rate_interval]"


class Line(NamedTuple):
    """What a panel draws, and the legend of it."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """A picture of some lines."""

    title: str
    unit: str
    lines: Sequence[Line]


def per_second(title: str, metric: str, *labels: str) -> Panel:
    """How often a counter counts."""
    return Panel(title, "ops", [counted(metric, *labels)])


def counted(metric: str, *labels: str, legend: str = "") -> Line:
    return Line(f"sum{_by(labels)} (rate({metric}{SPAN}))", legend or _legend(labels) or metric)


def shares(title: str, histogram: str, *labels: str, unit: str = "s", shown: Sequence[float] = (0.5, 0.99)) -> Panel:
    """The sizes that these shares of all stay within."""
    lines = [
        Line(
            f"histogram_quantile({share}, sum by ({', '.join(('le', *labels))}) (rate({histogram}_bucket{SPAN})))",
            f"{share:.0%} within {_legend(labels)}".strip(),
        )
        for share in shown
    ]
    return Panel(title, unit, lines)


def highest(title: str, unit: str, *lines: tuple[str, str] | str, by: Sequence[str] = ()) -> Panel:
    """Gauges that every process measures alike: a metric, or a metric with a word for it."""
    named = [(line, "") if isinstance(line, str) else line for line in lines]
    return Panel(
        title,
        unit,
        [Line(f"max{_by(by)} ({metric})", f"{_legend(by)} {word}".strip() or metric) for metric, word in named],
    )


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _legend(labels: Sequence[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)


HITS, MISSES = (f"sum(rate(rate_limiter_config_cache_{name}_total{SPAN}))" for name in ("hits", "misses"))

DASHBOARDS: Mapping[str, Sequence[Panel]] = {
    "slots": [
        per_second("Slots booked", "rate_limiter_slots_assigned_total", "config"),
        per_second("Slots refused", "rate_limiter_slot_assignment_failures_total", "config", "reason"),
        per_second("Events that had their slot", "rate_limiter_slots_existing_total", "config"),
        shares("Time of a booking", "rate_limiter_slot_assignment_duration_seconds"),
        shares("Time of a transaction", "rate_limiter_slot_transaction_duration_seconds"),
        shares("Events of one transaction", "rate_limiter_slot_batch_size", unit="none"),
        shares(
            "Windows between wanted and booked",
            "rate_limiter_window_lookahead_depth",
            "config",
            unit="none",
            shown=(0.99,),
        ),
        per_second("Writers in each other's way", "rate_limiter_window_contention_total"),
        Panel("Policies read from memory", "percentunit", [Line(f"{HITS} / ({HITS} + {MISSES})", "from memory")]),
    ],
    "limits": [
        per_second("Decisions", "rate_limiter_decisions_total", "plan", "outcome"),
        per_second("Would be denied (shadow)", "rate_limiter_shadow_denials_total", "plan"),
        per_second("Decided by failure policy", "rate_limiter_degraded_decisions_total"),
        shares("Time of the store", "rate_limiter_store_duration_seconds"),
        per_second("Failures of the store", "rate_limiter_store_failures_total"),
        highest("Breaker of the store (1: in that state)", "none", "rate_limiter_breaker_state", by=("state",)),
        shares("Size of leases", "rate_limiter_lease_size", unit="none"),
        per_second("Envoy: requests", "envoy_requests_total", "outcome"),
        per_second("Envoy: descriptors", "envoy_descriptors_total", "outcome"),
        per_second("Envoy: admitted near their limit", "envoy_near_limit_total", "rule"),
        Panel(
            "Envoy: undecided, and rules refused",
            "ops",
            [
                counted("envoy_failures_total", legend="undecided"),
                counted("envoy_config_rejections_total", legend="rules refused"),
            ],
        ),
    ],
    "work": [
        highest("Items by status", "none", "dispatch_queue_depth", by=("item_type", "status")),
        highest("Flow of the last minute", "none", "dispatch_flow_items", by=("item_type", "what")),
        highest(
            "Peak per second, and the limit",
            "ops",
            ("dispatch_peak_per_second", "peak"),
            ("dispatch_limit_per_second", "limit"),
            by=("item_type",),
        ),
        highest(
            "Late, and held by workers",
            "none",
            ("dispatch_late_items", "late"),
            ("dispatch_held_items", "held"),
            by=("item_type",),
        ),
        highest("How long the first is late", "s", "dispatch_oldest_due_seconds", by=("item_type",)),
        highest("Workers", "none", "dispatch_workers", by=("item_type",)),
        Panel(
            "Claimed, started, completed, failed",
            "ops",
            [
                counted("dispatch_batch_claimed_total", "item_type", legend="{{item_type}} claimed"),
                counted("dispatch_workflow_started_total", "item_type", legend="{{item_type}} started"),
                counted("dispatch_workflow_completed_total", "item_type", legend="{{item_type}} completed"),
                counted("dispatch_workflow_failed_total", "item_type", legend="{{item_type}} failed"),
            ],
        ),
        shares("Time of executions", "dispatch_execution_duration_seconds", "item_type"),
        shares("Time of a dispatch cycle", "dispatch_cycle_duration_seconds", "item_type", shown=(0.99,)),
        Panel(
            "Start failures and stale recoveries",
            "ops",
            [
                counted("dispatch_workflow_start_failures_total", "item_type", legend="{{item_type}} start failures"),
                counted("dispatch_stale_recovered_total", "item_type", legend="{{item_type}} recovered"),
            ],
        ),
        Panel(
            "Dead letters in the range",
            "none",
            [Line("sum by (item_type) (increase(dispatch_dead_letter_total[$__range]))", "{{item_type}}")],
        ),
        Panel(
            "Blocked loops, abandoned threads, unread switch",
            "none",
            [
                counted(
                    "dispatch_event_loop_blocked_seconds_total",
                    "instance",
                    legend="{{instance}} blocked, seconds per second",
                ),
                Line("sum by (item_type) (dispatch_threads_abandoned)", "{{item_type}} threads abandoned"),
                counted("dispatch_switch_unread_total", legend="switch unread"),
            ],
        ),
    ],
    "downstreams": [
        Panel(
            "Calls",
            "ops",
            [
                Line(f"max by (downstream) (rate(downstream_calls{SPAN}))", "{{downstream}} calls"),
                Line(f"max by (downstream) (rate(downstream_calls_throttled{SPAN}))", "{{downstream}} throttled"),
                Line(f"max by (downstream) (rate(downstream_calls_failed{SPAN}))", "{{downstream}} failed"),
                Line(f"max by (downstream) (rate(downstream_calls_unknown{SPAN}))", "{{downstream}} unknown"),
            ],
        ),
        highest(
            "Rate, and what it is now",
            "ops",
            ("downstream_rate", "rate"),
            ("downstream_effective_rate", "effective"),
            by=("downstream",),
        ),
        Panel(
            "Waited for permits",
            "s",
            [Line(f"max by (downstream) (rate(downstream_waited_seconds{SPAN}))", "{{downstream}}, per second")],
        ),
        highest("Calls that wait", "none", "downstream_calls_waiting", by=("downstream",)),
        highest(
            "Paused, and breaker open",
            "none",
            ("downstream_paused", "paused"),
            ("downstream_shared_breaker_open", "breaker open"),
            by=("downstream",),
        ),
    ],
    "service": [
        per_second("Requests", "http_requests_total", "status"),
        shares("Time of requests", "http_request_duration_seconds", "route", shown=(0.99,)),
        per_second("Callers at the service's own door", "ingress_decisions_total", "plan", "outcome"),
        per_second("Failures of the door's store", "ingress_store_failures_total"),
        highest("Breaker of the door (1: open)", "none", "ingress_breaker_open"),
        highest("Dependencies (1: up)", "none", "dependency_up", by=("dependency",)),
        Panel(
            "Dependencies that are down, by reason",
            "none",
            [Line("max by (dependency, reason) (dependency_down) > 0", "{{dependency}} {{reason}}")],
        ),
        highest("Kafka: records not read yet", "none", "kafka_lag_records", by=("topic",)),
        highest("Kafka: partitions with too few replicas", "none", "kafka_under_replicated_partitions", by=("topic",)),
    ],
    "payments": [
        highest("Payments by status", "none", "payments_by_status", by=("status",)),
        per_second("Taken in", "payments_intake_total", "outcome"),
        per_second("Executed", "payments_executions_total", "verdict"),
        shares("Time of a call to the bank", "payments_downstream_call_duration_seconds"),
        shares("Waited for a permit", "payments_downstream_wait_seconds"),
        highest("Limit towards the bank", "ops", "payments_downstream_limit"),
        highest("Breaker (1: open)", "none", "payments_downstream_breaker_open"),
        highest("The bank can't be reached (1), by reason", "none", "payments_downstream_unreachable", by=("reason",)),
        highest("How long the first is overdue", "s", "payments_oldest_overdue_seconds"),
    ],
    "sms": [
        per_second("Deliveries", "notification_deliveries_total", "outcome"),
        shares("Time of /api/send", "notification_send_duration_seconds"),
        shares("Time of a provider", "notification_provider_duration_seconds", "provider"),
        highest("Some provider is available (1: yes)", "none", "notification_provider_available"),
        highest("Messages that wait", "none", "notification_backlog_messages"),
        highest("How long the first waits", "s", "notification_backlog_oldest_seconds"),
        highest(
            "Dead letters, and unknown",
            "none",
            ("notification_dead_letters", "dead letters"),
            ("notification_unknown_messages", "unknown"),
        ),
        per_second("Lost messages", "notification_lost_messages_total"),
        shares("Time until a receipt", "notification_receipt_delay_seconds"),
        Panel(
            "Redis left out, and readers restarted",
            "ops",
            [
                counted("notification_redis_fallbacks_total", legend="without Redis"),
                counted("notification_reader_restarts_total", legend="restarts"),
            ],
        ),
        Panel(
            "Events for the index",
            "ops",
            [
                counted("notification_events_indexed_total", legend="indexed"),
                counted("notification_events_dropped_total", legend="dropped"),
            ],
        ),
    ],
}


def dashboard(name: str) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    return {
        "uid": f"paceline-{name}",
        "title": f"paceline: {name}",
        "tags": ["paceline"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "links": [{"type": "dashboards", "tags": ["paceline"], "title": "paceline", "asDropdown": True}],
        "panels": [_panel(number, panel) for number, panel in enumerate(DASHBOARDS[name])],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": row * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": line.expression, "legendFormat": line.legend}
            for index, line in enumerate(panel.lines)
        ],
    }


def text(name: str) -> str:
    return json.dumps(dashboard(name), indent=2) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name), "utf-8")
