"""Notifications: a rate-limited SMS gateway."""
