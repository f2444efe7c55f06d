"""Real servers on free loopback ports, one module each. `headgate.testing` has their names."""
