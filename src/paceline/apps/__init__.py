"""Reference applications, on paceline's public names and ports only."""
