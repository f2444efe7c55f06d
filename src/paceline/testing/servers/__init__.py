"""Real servers on free loopback ports, one module each. `paceline.testing` has their names."""
