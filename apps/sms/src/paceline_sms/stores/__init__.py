"""The gateway's stores of quotas, deliveries and attempts."""
