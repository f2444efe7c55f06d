"""Configs, forecasts, decisions and plans as JSON has them: the same on HTTP and on the command line."""

from __future__ import annotations

from typing import Any

from headgate.durations import format_instant
from headgate.limits.model import Decision, Plan
from headgate.limits.plan_documents import document_of
from headgate.slots import Forecast, PolicyVersion
from headgate.slots.forecast import WindowFill


def config_json(version: PolicyVersion, *, active: bool) -> dict[str, Any]:
    """A version as JSON has it."""
    return {
        "configName": version.name,
        "version": version.version,
        "active": active,
        **version.policy.to_json(),
        "createdAt": format_instant(version.created_at),
    }


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    """A forecast as JSON has it."""
    first, last, drained = forecast.first_window, forecast.last_window, forecast.drained_by
    return {
        "configName": forecast.config_name,
        "configVersion": forecast.config_version,
        "events": forecast.events,
        "requestedTime": format_instant(forecast.requested_time),
        "firstWindow": None if first is None else format_instant(first),
        "lastWindow": None if last is None else format_instant(last),
        "drainedBy": None if drained is None else format_instant(drained),
        "placed": forecast.placed,
        "refused": forecast.refused,
        "windowCount": forecast.window_count,
        "windows": [_fill_json(fill) for fill in forecast.windows],
        "nextWindows": [_fill_json(fill) for fill in forecast.next_windows],
        "peaks": [
            {"spread": peaks.spread.value, "perSecond": peaks.per_second, "per100Ms": peaks.per_100_ms}
            for peaks in forecast.peaks
        ],
    }


def _fill_json(fill: WindowFill) -> dict[str, Any]:
    return {"start": format_instant(fill.start), "taken": fill.taken, "added": fill.added, "limit": fill.limit}


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision as JSON has it; times are seconds."""
    return {
        "allowed": decision.allowed,
        "remaining": decision.remaining,
        "limit": decision.limit,
        "retryAfter": decision.retry_after,
        "resetAfter": decision.reset_after,
        "plan": decision.plan,
        "reason": decision.reason.value,
        "degraded": decision.degraded,
        "plans": [
            {
                "plan": state.plan,
                "allowed": state.allowed,
                "remaining": state.remaining,
                "limit": state.limit,
                "retryAfter": state.retry_after,
                "resetAfter": state.reset_after,
                "shadow": state.shadow,
            }
            for state in decision.states
        ],
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it."""
    return {"name": plan.name, **document_of(plan)}
