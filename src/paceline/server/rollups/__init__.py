"""Numbers of the whole installation over time: every process counts for itself and writes once a minute."""
