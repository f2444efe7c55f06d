"""The message log on Apache Kafka."""

from paceline.extras import require

require("Kafka", "kafka")
