"""Where payments are kept, and the permits of the downstream."""
