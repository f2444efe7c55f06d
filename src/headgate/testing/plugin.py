"""The pytest plugin: `-p headgate.testing.plugin` gives a test suite headgate's fixtures."""
