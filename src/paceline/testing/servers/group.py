"""Several servers that are one: a cluster, or a master with its replicas and sentinels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self

from paceline.testing.servers.failures import ServerFailed
from paceline.testing.servers.server import Server
from paceline.testing.waiting import pause


class ServerGroup:
    """Does to each member what `Server` does to one; `start` also waits until the members have found each other."""

    name: str

    def members(self) -> Sequence[Server]:
        """All of them, in the order they are started."""
        raise NotImplementedError

    def form(self) -> None:
        """Joins the members, once, when all of them have started for the first time."""

    def is_whole(self) -> bool:
        """Whether every member knows the others and the group serves. An exception counts as no."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._formed = False

    def start(self) -> Self:
        """Starts whichever members do not run; on the same ports and data as before, if they ran before."""
        try:
            for member in self.members():
                if not member.running:
                    member.start()
            if not self._formed:
                self.form()
                self._formed = True
            self.wait_until(self.is_whole, "did not become whole")
        except BaseException:
            if not self._formed:
                self.close()
            raise
        return self

    def wait_until(self, condition: Callable[[], bool], otherwise: str, within: float = 60.0) -> None:
        """Polls `condition`; after `within` seconds raises `ServerFailed` with the members' logs."""
        began = time.monotonic()
        while True:
            probed = time.monotonic()
            try:
                if condition():
                    return
                cause = None
            except Exception as failure:
                cause = failure
            if time.monotonic() > began + within:
                logs = "\n".join(f"{member.address}: {member.log_tail()}" for member in self.members())
                raise ServerFailed(f"{self.name}: {otherwise} within {within:g} s\n{logs}") from cause
            time.sleep(pause(began, probed))

    def stop(self) -> None:
        """Stops the members gracefully, the last started first; ports and data stay."""
        for member in reversed(self.members()):
            member.stop()

    def kill(self) -> None:
        """SIGKILL to all of them."""
        for member in self.members():
            member.kill()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def pause(self) -> None:
        for member in self.members():
            member.pause()

    def resume(self) -> None:
        for member in self.members():
            member.resume()

    def close(self) -> None:
        """Ends all of them and removes their data."""
        for member in self.members():
            member.close()
        self._formed = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
