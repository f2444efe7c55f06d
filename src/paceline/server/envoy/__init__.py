"""Envoy's rate limit service: descriptors of a request decided by plans."""
