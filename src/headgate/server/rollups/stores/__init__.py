"""The stores of rollups."""
