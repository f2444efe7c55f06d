"""Reference applications, on headgate's public names and ports only."""
