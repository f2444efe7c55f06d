"""Payments: half a million for 16:00, and a downstream that never sees more than it can take."""
