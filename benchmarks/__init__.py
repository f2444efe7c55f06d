"""paceline beside its peers, in the same run: `python -m benchmarks [--quick] [name …]`. One module per table."""
