"""Temporal: executions are workflows, and the dispatcher is one too."""
