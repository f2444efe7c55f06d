"""Tokens, sessions and the audit of administration in a database."""
