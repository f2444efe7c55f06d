"""Tasks as functions, on the dispatch queue."""
