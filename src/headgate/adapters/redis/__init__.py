"""Redis, Sentinel and Cluster."""
