"""Periodic tasks: their schedules, and the ticks that queue them."""
