"""A kind of work of one's own, on paceline's public names alone: see README.md."""
