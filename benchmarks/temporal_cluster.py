"""Table "Temporal cluster": starts per second on two processes of the real server, on PostgreSQL with fsync.

It is not among those of `make bench`, because the server has to be built first: `make cluster-bench`.
"""

from __future__ import annotations

from benchmarks.dispatch import temporal_starts
from benchmarks.measure import Table
from paceline.testing.servers.postgres import PostgresServer
from paceline.testing.servers.temporal_cluster import TemporalCluster


def tables(quick: bool) -> list[Table]:
    """Measures everything; `quick` shows that it runs, not how fast."""
    with PostgresServer(fsync=True) as postgres, TemporalCluster(fsync=True) as cluster:
        table = Table("Temporal cluster")
        temporal_starts(table, postgres.url, cluster.addresses[0], quick)
        table.close()
    return [table]


if __name__ == "__main__":
    tables(quick=False)
