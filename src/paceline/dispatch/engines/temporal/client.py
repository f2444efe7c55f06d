"""Connecting to Temporal."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RetryConfig, TLSConfig

from paceline.dispatch.encryption import Encryption
from paceline.dispatch.engines.temporal.converter import data_converter
from paceline.errors import ConfigurationError, StoreUnavailable

FAIL_FAST = RetryConfig(max_retries=2, max_elapsed_time_millis=2_000)
"""Few retries: a dispatcher whose starts are refused gives its claims back within about a second."""


@dataclass(frozen=True, slots=True)
class Security:
    """TLS options of the connection; without any of them it is plain text."""

    tls: bool = False
    """With the system's certificate authorities."""
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """The authority that signed the server's certificate."""
    cert_file: Path | None = None
    """This client's own certificate, with `key_file`."""
    key_file: Path | None = None

    def config(self) -> bool | TLSConfig:
        if (self.cert_file is None) != (self.key_file is None):
            missing = "temporal_key_file" if self.key_file is None else "temporal_cert_file"
            raise ConfigurationError(missing, "is not set; a certificate and its key go together")
        if self.ca_file is None and self.cert_file is None:
            return self.tls or self.api_key is not None
        return TLSConfig(
            server_root_ca_cert=_read(self.ca_file, "temporal_ca_file"),
            client_cert=_read(self.cert_file, "temporal_cert_file"),
            client_private_key=_read(self.key_file, "temporal_key_file"),
        )


OPEN = Security()


@dataclass(frozen=True, slots=True)
class TemporalConnection:
    """The address of Temporal, and the build id of this process's workers.

    A namespace belongs to one database, because the ids of workflows are made of item types and item ids.
    """

    address: str
    namespace: str = "default"
    security: Security = OPEN
    build_id: str | None = None
    """The version of this process; None for unversioned workers."""

    async def client(self, encryption: Encryption | None = None) -> Client:
        """A client for workers.

        Raises:
            StoreUnavailable: no Temporal answers.
        """
        return await connect(self.address, self.namespace, security=self.security, encryption=encryption)

    async def client_for_dispatch(self, encryption: Encryption | None = None) -> Client:
        """A client for `TemporalEngine`. It connects with its first call."""
        return await connect_for_dispatch(
            self.address, self.namespace, lazy=True, security=self.security, encryption=encryption
        )


async def connect(
    address: str,
    namespace: str = "default",
    *,
    lazy: bool = False,
    security: Security = OPEN,
    encryption: Encryption | None = None,
    retry: RetryConfig | None = None,
) -> Client:
    """A client for workers: without `retry`, the SDK's retry policy applies. `lazy` connects with the first call.

    Raises:
        ConfigurationError: a certificate can't be read, or its key is missing.
        StoreUnavailable: no Temporal answers.
    """
    try:
        return await Client.connect(
            address,
            namespace=namespace,
            data_converter=data_converter(encryption),
            retry_config=retry or RetryConfig(),
            lazy=lazy,
            tls=security.config(),
            api_key=security.api_key,
            runtime=_runtime(),
        )
    except RuntimeError as error:
        raise StoreUnavailable(f"no Temporal answers at {address}: {error}") from error


connect_for_dispatch = partial(connect, retry=FAIL_FAST)
"""A client for `TemporalEngine`: a refusal surfaces quickly."""


@cache
def _runtime() -> Runtime:
    """The SDK's own threads, one set for the process. Their messages go to the log. By default they write to standard
    output, and block for ever if that pipe is not read."""
    forwarding = LogForwardingConfig(logging.getLogger("temporalio"))
    level = TelemetryFilter(core_level="WARN", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(level, forwarding)))


def _read(path: Path | None, setting: str) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise ConfigurationError(setting, f"{path} can't be read: {error.strerror}") from error
