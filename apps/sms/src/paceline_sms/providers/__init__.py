"""The providers: the console, or an HTTP service."""
