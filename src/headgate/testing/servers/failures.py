"""What can go wrong with a server for tests.

HeadgateError
├── ServerUnavailable    it can't be had on this machine: a package, Java or a download is missing
└── ServerFailed         it is here, but did not come up or go down as it should; carries the end of its log
"""

from __future__ import annotations

from headgate.errors import HeadgateError


class ServerUnavailable(HeadgateError):
    """This server can't be had on this machine."""


class ServerFailed(HeadgateError):
    """The server did not start or stop as it should."""
