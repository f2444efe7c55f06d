"""Reconciliation: payments compared with the downstream's statement, every difference named."""
