"""One frozen settings tree, from the environment and `headgate.toml`."""
