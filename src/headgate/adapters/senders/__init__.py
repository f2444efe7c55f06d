"""What finally delivers a notification."""
