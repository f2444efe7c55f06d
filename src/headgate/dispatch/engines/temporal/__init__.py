"""Temporal: executions are workflows, and the dispatcher is one too."""

from headgate.extras import require

require("Temporal", "temporal")
