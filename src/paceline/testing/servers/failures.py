"""The errors of test servers.

PacelineError
├── ServerUnavailable    not available on this machine: a package, Java or a download is missing
└── ServerFailed         it did not start or stop as it should; carries the end of its log
"""

from __future__ import annotations

from paceline.errors import PacelineError


class ServerUnavailable(PacelineError):
    """This server is not available on this machine."""


class ServerFailed(PacelineError):
    """The server did not start or stop as it should."""
