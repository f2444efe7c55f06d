"""A second domain, on paceline's public names alone: see README.md."""
