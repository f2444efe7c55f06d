"""Planned = executed = bank: payments compared with the downstream's statement, every difference named."""
