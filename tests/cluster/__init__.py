"""What needs servers that take minutes to build or to run: `make cluster-test`, not every check."""
