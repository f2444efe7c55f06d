"""The file of rules, read again when it changes: a party that is blocked now is not paid a second later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from paceline.errors import ConfigurationError
from paceline_payments.rules import RuleBook, load_rules

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often the file's time is looked at."""


class RuleFile:
    """The rules in a TOML file. Calling it gives those that hold now; while the file has an error, the last good ones.

    Raises:
        ConfigurationError: The file has an error at the start.
    """

    def __init__(self, path: Path | str, load: Callable[[Path], RuleBook] = load_rules) -> None:
        self._path = Path(path)
        self._load = load
        self._mark = self._stamp()
        self._rules = self._load(self._path)
        self._looked = time.monotonic()

    def __call__(self) -> RuleBook:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            stamp = self._stamp()
            if stamp is not None and stamp != self._mark:
                self._mark = stamp
                self._read()
        return self._rules

    def _read(self) -> None:
        try:
            self._rules = self._load(self._path)
        except ConfigurationError as error:
            log.error("the rules of payments were changed and can't be used, those before hold: %s", error)
        else:
            log.info("the rules of payments were read again")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            known = self._path.stat()
        except OSError:
            return None  # it is being replaced, or gone: the rules that were read hold
        return known.st_mtime_ns, known.st_size, known.st_ino
