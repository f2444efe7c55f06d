"""The HTTP service: one router per feature."""
