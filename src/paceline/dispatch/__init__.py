"""Make it run then, once: a durable queue and the cycle that drains it."""
