"""The in-process engine and broker."""
