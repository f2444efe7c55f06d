"""Configs, decisions and plans as JSON has them: the same on HTTP and on the command line."""

from __future__ import annotations

from typing import Any

from headgate.durations import format_instant
from headgate.limits.model import Decision, Plan
from headgate.limits.plan_documents import document_of
from headgate.slots import PolicyVersion


def config_json(version: PolicyVersion, *, active: bool) -> dict[str, Any]:
    """A version as JSON has it."""
    return {
        "configName": version.name,
        "version": version.version,
        "active": active,
        **version.policy.to_json(),
        "createdAt": format_instant(version.created_at),
    }


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
