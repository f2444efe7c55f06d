"""The engines that run items: this process, or Temporal."""
