"""Where the gateway keeps quotas, deliveries and attempts."""
