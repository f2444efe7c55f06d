"""The only place that names concrete adapters: URL scheme or settings tree -> the parts that work together.

One module a feature. A name is imported when it is first asked for: a web application that keeps its limits in memory
loads no database library, and `headgate --help` loads nothing at all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.bootstrap.checkup import kafka_facts, probes, redis_facts, temporal_facts
    from headgate.bootstrap.databases import DatabaseFacts, database, database_facts, migrate_up, migration_script
    from headgate.bootstrap.execution import dispatch_guard, dispatching, domains, local_dispatch
    from headgate.bootstrap.front_door import ingress
    from headgate.bootstrap.limit_stores import async_limit_store, limit_store
    from headgate.bootstrap.limits import Admission, admission, async_plan_registry, plan_registry
    from headgate.bootstrap.payment_app import Payments, payment_domain, payments, prune_payments, rule_book
    from headgate.bootstrap.queues import dispatch_observer, dispatch_queue, queue_store
    from headgate.bootstrap.requirements import require_extras
    from headgate.bootstrap.scheduling import slot_scheduler, slot_store
    from headgate.bootstrap.sms_gateway import Notifications, notifications, prune_notifications, run_sender
    from headgate.bootstrap.temporal import temporal_crew, temporal_engine
    from headgate.bootstrap.tokens import access_store, gate, sessions
    from headgate.bootstrap.traces import tracer, tracing

MODULES = {
    "checkup": ("kafka_facts", "probes", "redis_facts", "temporal_facts"),
    "databases": ("DatabaseFacts", "database", "database_facts", "migrate_up", "migration_script"),
    "execution": ("dispatch_guard", "dispatching", "domains", "local_dispatch"),
    "front_door": ("ingress",),
    "limit_stores": ("async_limit_store", "limit_store"),
    "limits": ("Admission", "admission", "async_plan_registry", "plan_registry"),
    "payment_app": ("Payments", "payment_domain", "payments", "prune_payments", "rule_book"),
    "queues": ("dispatch_observer", "dispatch_queue", "queue_store"),
    "requirements": ("require_extras",),
    "scheduling": ("slot_scheduler", "slot_store"),
    "sms_gateway": ("Notifications", "notifications", "prune_notifications", "run_sender"),
    "temporal": ("temporal_crew", "temporal_engine"),
    "tokens": ("access_store", "gate", "sessions"),
    "traces": ("tracer", "tracing"),
}
"""Where each name lives. No name is also a module's: importing the module would hide it."""


def __getattr__(name: str) -> Any:
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
