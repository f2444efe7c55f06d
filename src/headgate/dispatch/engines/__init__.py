"""What runs an item: this process, or Temporal."""
