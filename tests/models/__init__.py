"""Naive stores in plain Python: what the SQL stores are compared with, and quick ones for unit tests."""
