"""The HTTP service: one router per feature."""

from paceline.extras import require

require("the service", "server")
