"""Wiring: builds the objects of a process from its settings, one module per feature."""
