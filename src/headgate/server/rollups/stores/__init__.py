"""Where rollups are kept."""
