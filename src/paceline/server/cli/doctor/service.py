"""What the service loads or calls beside its servers, as far as it is configured: encryption, gRPC, OpenID Connect."""

from __future__ import annotations

from paceline.server.cli.doctor.finding import Finding, loaded, within
from paceline.server.settings import Settings, origin, spelled
from paceline.server.wiring.access import oidc_provider
from paceline.server.wiring.envoy import check_grpc_files
from paceline.server.wiring.queue import queue_encryption


async def examine(settings: Settings) -> list[Finding]:
    """A finding for each of them that the settings name."""
    findings = []
    if settings.dispatch.encryption_keys is not None:
        findings.append(loaded("encryption", lambda: _encryption(settings)))
    if settings.grpc.port is not None or settings.envoy.config is not None:
        findings.append(loaded("grpc", lambda: _grpc(settings)))
    if (issuer := settings.oidc.issuer) is not None:
        advice = f"check {spelled('oidc', 'issuer')} and that the provider runs"
        findings += await within("oidc", origin(issuer), advice, _oidc(settings, issuer))
    return findings


def _encryption(settings: Settings) -> str:
    queue_encryption(settings)
    return "contexts and results are encrypted"


def _grpc(settings: Settings) -> str:
    check_grpc_files(settings)
    return f"{settings.host}:{settings.grpc.port}"


async def _oidc(settings: Settings, issuer: str) -> list[Finding]:
    provider = oidc_provider(settings)
    assert provider is not None
    await provider.check()
    return [Finding("oidc", True, f"{origin(issuer)} answers")]
