"""A second domain, on headgate's public names alone: see README.md."""
