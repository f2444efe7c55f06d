"""Traces by OpenTelemetry. Nothing else of headgate imports it."""
