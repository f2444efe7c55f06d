"""Thin bindings to web frameworks and HTTP clients; each imports its framework at the top."""
