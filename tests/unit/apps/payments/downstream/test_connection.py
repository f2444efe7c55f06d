"""The connection to the bank: refused by the setting that can't work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigurationError
from paceline_payments.downstream.connection import DownstreamConnection


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"url": "bank:9090"}, "downstream_url"),
        ({"inquiry_path": "/status"}, "downstream_inquiry_path"),
        ({"token": "a", "token_file": Path("b")}, "downstream_token"),
        ({"token_file": Path("/nowhere")}, "downstream_token_file"),
        ({"client_key": Path("k")}, "downstream_client_key"),
    ],
)
def test_a_connection_that_can_not_work_is_refused_by_its_setting(options: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        DownstreamConnection(**{"url": "http://bank", **options})


def test_a_certificate_that_can_not_be_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="downstream_client_cert"):
        DownstreamConnection("https://bank", client_cert=Path("/nowhere.pem")).ssl_context()
