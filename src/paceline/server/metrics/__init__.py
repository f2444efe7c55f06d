"""Observers that turn what features report into Prometheus metrics."""
