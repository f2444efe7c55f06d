"""All interleavings of a few actors over the pure decisions, by breadth-first search."""
