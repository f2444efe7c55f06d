"""Traces by OpenTelemetry. Nothing else of headgate imports it."""

from headgate.extras import require

require("traces", "traces")
