"""headgate decides whether, when and how fast work may flow, and then makes it flow."""

__version__ = "0.1.0"
