"""Authentication and authorization: tokens, scopes, sessions, the audit of administration."""
