"""The service's own limits over real connections: which proxies are trusted for addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.service import Service


@pytest.mark.parametrize(("trusted", "statuses"), [("", [404, 429, 429]), ("127.0.0.0/8", [404, 404, 429])])
def test_only_a_trusted_proxy_is_believed(tmp_path: Path, trusted: str, statuses: list[int]) -> None:
    limits = {"PACELINE_INGRESS_PER_SECOND": "0.001", "PACELINE_INGRESS_BURST": "1"}
    with (
        Service(tmp_path, **limits, PACELINE_HTTP_TRUSTED_PROXIES=trusted) as service,
        service.client() as http,
    ):
        found = [
            http.get("/api/v1/slots/x", headers={"X-Forwarded-For": address}).status_code
            # The client wrote the first address of the last one itself; the proxy added the second.
            for address in ("192.0.2.1", "192.0.2.2", "198.51.100.9, 192.0.2.2")
        ]
        assert found == statuses
    assert "caller refused: too many requests" in service.log
