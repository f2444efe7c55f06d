"""Temporal: executions are workflows, and so is the dispatcher."""

from paceline.extras import require

require("Temporal", "temporal")
