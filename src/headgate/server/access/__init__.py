"""Who may call, and what they changed: tokens, scopes, the audit of administration."""
