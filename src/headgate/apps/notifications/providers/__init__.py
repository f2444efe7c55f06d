"""Who brings a message to the phone: the log, or an HTTP provider."""
