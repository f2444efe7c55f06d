"""The HTTP service: one router per feature."""

from headgate.extras import require

require("the service", "server")
