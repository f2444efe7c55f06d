"""The message log on Apache Kafka."""

from headgate.extras import require

require("Kafka", "kafka")
