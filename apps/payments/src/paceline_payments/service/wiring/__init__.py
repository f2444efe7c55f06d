"""Settings to objects."""
