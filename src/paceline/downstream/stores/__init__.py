"""Where permits and breakers are shared."""
