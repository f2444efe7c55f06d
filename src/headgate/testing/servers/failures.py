"""The errors of test servers.

HeadgateError
├── ServerUnavailable    not available on this machine: a package, Java or a download is missing
└── ServerFailed         it did not start or stop as it should; carries the end of its log
"""

from __future__ import annotations

from headgate.errors import HeadgateError


class ServerUnavailable(HeadgateError):
    """This server is not available on this machine."""


class ServerFailed(HeadgateError):
    """The server did not start or stop as it should."""
