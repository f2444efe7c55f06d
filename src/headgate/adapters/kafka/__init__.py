"""The message log on Apache Kafka."""
