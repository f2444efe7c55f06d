"""headgate decides whether, when and how fast work may flow, and then makes it flow."""

from headgate.admission.model import Decision, FixedWindow, Plan, Reason, SlidingLog, SlidingWindow, TokenBucket

__version__ = "0.1.0"

__all__ = [
    "Decision",
    "FixedWindow",
    "Plan",
    "Reason",
    "SlidingLog",
    "SlidingWindow",
    "TokenBucket",
]
