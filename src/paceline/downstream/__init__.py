"""Calls to another system, at its pace."""
