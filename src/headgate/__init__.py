"""headgate decides whether, when and how fast work may flow, and then makes it flow."""

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.breaker import BreakerPolicy
from headgate.admission.leases import LeasePolicy
from headgate.admission.limiter import Limiter
from headgate.admission.model import Decision, FixedWindow, Plan, Reason, SlidingLog, SlidingWindow, TokenBucket
from headgate.admission.toml_plans import TomlPlans

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "BreakerPolicy",
    "Decision",
    "FixedWindow",
    "LeasePolicy",
    "Limiter",
    "Plan",
    "Reason",
    "SlidingLog",
    "SlidingWindow",
    "TokenBucket",
    "TomlPlans",
]
