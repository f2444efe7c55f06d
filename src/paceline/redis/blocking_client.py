# Generated from redis/async_client.py by scripts/generate_blocking.py. Do not edit.
"""Redis for threads: a command goes to the server that has its keys.

A command is retried only after a reply that says it was not run (`redirects.py`). Concurrent callers share one
discovery and its result, also if it fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from paceline.errors import StoreUnavailable
from paceline.redis.blocking_connection import Connections, RedisConnection
from paceline.redis.discovery import Candidates, Discovery, Query, Result, master, slot_map
from paceline.redis.protocol import ASKING, Script
from paceline.redis.redirects import (
    MAX_REDIRECTS,
    TRY_AGAIN_SECONDS,
    Action,
    ErrorReply,
    SlotMap,
    redirect_of,
    store_error,
)
from paceline.redis.single_flight import SingleFlight
from paceline.redis.url import Address, RedisUrl, Topology


class RedisClient:
    """Sends commands to the server that has their keys."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._connections = Connections(self.url)
        self._discovery = SingleFlight()
        self._master = self.url.addresses[0] if self.url.topology is Topology.SINGLE else None
        self._slots: SlotMap | None = None
        self._candidates = Candidates(self.url.addresses)

    def execute(self, command: bytes, script: Script | None = None, slot: int = 0) -> Any:
        """The reply to `command`, after all redirects; `slot` is its keys' slot in a cluster.

        Raises:
            StoreUnavailable: no server could be reached, or none replied in time.
            StoreError: Redis replied with an error.
        """
        if self._process != os.getpid():
            # A forked child shares its parent's sockets; using them would mix up replies.
            self._reset()
        reply = self._send(self._master or self._owner(slot), command)
        return self.follow_redirects(reply, command, script, slot) if isinstance(reply, ErrorReply) else reply

    def execute_many(self, calls: Sequence[tuple[bytes, int]], script: Script | None = None) -> list[Any]:
        """The replies to commands, each with its slot, that are sent together. Raises what `execute` does; then any of
        the commands may have been run."""
        if self._process != os.getpid():
            self._reset()
        replies = self._send_grouped(calls)
        for index, ((command, slot), reply) in enumerate(zip(calls, replies, strict=True)):
            if isinstance(reply, ErrorReply):
                replies[index] = self.follow_redirects(reply, command, script, slot)
        return replies

    def _send_grouped(self, calls: Sequence[tuple[bytes, int]]) -> list[Any]:
        groups: dict[Address, list[int]] = {}
        for index, (_, slot) in enumerate(calls):
            groups.setdefault(self._master or self._owner(slot), []).append(index)
        replies: list[Any] = [None] * len(calls)
        for address, indexes in groups.items():
            sent = [calls[index][0] for index in indexes]
            try:
                answered = self._connections.send_all(address, sent)
            except StoreUnavailable:
                self._forget(address)
                raise
            for index, reply in zip(indexes, answered, strict=True):
                replies[index] = reply
        return replies

    def follow_redirects(
        self, error_reply: ErrorReply, command: bytes, script: Script | None = None, slot: int = 0
    ) -> Any:
        """The reply to a command that got an error reply, which means that it was not run."""
        return self._follow_redirects(error_reply, command, script, slot)

    def _follow_redirects(self, error_reply: ErrorReply, command: bytes, script: Script | None, slot: int) -> Any:
        redirects, asking = 0, False
        pauses, end = iter(TRY_AGAIN_SECONDS), time.monotonic() + self.url.timeout
        while redirects < MAX_REDIRECTS:
            action, address = redirect_of(*error_reply)
            redirects += 1
            if action is Action.WITH_SCRIPT and script is not None:
                command, address = script.with_source(command), error_reply.server
            elif action is Action.MOVED:
                self._slots = None
            elif action is Action.NEW_MASTER and self.url.topology is Topology.SENTINEL:
                self._forget(error_reply.server)
                address = self._owner(slot)
            elif action is Action.TRY_AGAIN:
                pause = next(pauses, None)
                if pause is None or time.monotonic() + pause > end:
                    break
                time.sleep(pause)
                redirects, address = 0, self._owner(slot)
            if address is None:
                self._forget(error_reply.server)
                break
            # A node that imports the slot, and lacks the script, needs ASKING again.
            asking = action is Action.ASK or (asking and action is Action.WITH_SCRIPT)
            reply = self._send(address, *((ASKING, command) if asking else (command,)))
            if not isinstance(reply, ErrorReply):
                return reply
            error_reply = reply
        raise store_error(*error_reply)

    def masters(self) -> tuple[Address, ...]:
        """Every server that takes writes."""
        if self.url.topology is Topology.CLUSTER:
            result = self._slots if self._slots is not None else self._discovery.run(self._discover)
            return result.masters if isinstance(result, SlotMap) else (result,)
        return (self._master or self._owner(0),)

    def close(self) -> None:
        """Closes the connections that are idle; one in use is closed after its call."""
        self._connections.close()

    def _send(self, address: Address, *commands: bytes) -> Any:
        try:
            return self._connections.send(address, *commands)
        except StoreUnavailable:
            self._forget(address)
            raise

    def _forget(self, address: Address) -> None:
        """Drops the connections to a server that failed, so that the next call runs a discovery."""
        self._connections.drop(address)
        self._candidates.put_last(address)
        slots = self._slots
        if slots is not None:
            slots.mark_stale(address)
        if self.url.topology is Topology.SENTINEL and self._master == address:
            self._master = None

    def _owner(self, slot: int) -> Address:
        slots = self._slots
        known = self._master if slots is None else slots.lookup(slot)
        if known is not None:
            return known
        # The result is used even if it was marked stale since.
        result = self._discovery.run(self._discover)
        return result.owner(slot) if isinstance(result, SlotMap) else result

    def _discover(self) -> Address | SlotMap:
        if self.url.topology is Topology.SENTINEL:
            self._master = address = self._run_discovery(master(self.url, self._candidates))
            return address
        self._slots = slots = self._run_discovery(slot_map(self.url, self._candidates))
        return slots

    def _run_discovery(self, discovery: Discovery[Result]) -> Result:
        end = time.monotonic() + self.url.timeout
        try:
            query = next(discovery)
            while True:
                try:
                    reply = self._send_query(query, query.due(time.monotonic(), end))
                except StoreUnavailable as error:
                    query = discovery.throw(error)
                else:
                    query = discovery.send(reply)
        except StopIteration as ended:
            result: Result = ended.value
            return result

    def _send_query(self, query: Query, due: float) -> Any:
        connection = RedisConnection.open(query.address, self.url, query.login, due)
        try:
            reply = connection.exchange_by(due, query.command)
        finally:
            connection.close()
        if isinstance(reply, ErrorReply):
            raise store_error(*reply)
        return reply
