"""The stores of payments, and of the permits of the downstream."""
