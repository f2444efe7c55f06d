"""Payments: two-phase workflows towards a downstream with a hard limit."""
