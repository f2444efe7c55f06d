"""Temporal: executions are workflows, and so is the dispatcher."""

from headgate.extras import require

require("Temporal", "temporal")
