"""Plans from a TOML file that may be edited while limiters run.

[plans.gold]
algorithm = "token_bucket"
capacity = 10
perSecond = 1
overrides."user:vip" = { capacity = 100, perSecond = 10 }

[plans]
free = "100/hour;1000/day"
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping
from pathlib import Path

from paceline.errors import ConfigurationError
from paceline.limits.model import Plan
from paceline.limits.plan_documents import plan_from
from paceline.options import is_number

log = logging.getLogger("paceline.limits")


class TomlPlans:
    """A `PlanRegistry` over the table `plans` of a file, checked again when `refresh_every` seconds have passed.

        Limiter("redis://cache", plans=TomlPlans("plans.toml"))

    Any number of limiters may share it; the file is read once per change.

    The first load of an invalid file raises. If the file becomes invalid later, that is logged once and the plans in
    force stay. They also stay while it is empty, as a file is while it is saved in place; an empty table `[plans]`
    removes all.

    Raises:
        ConfigurationError: `refresh_every` is neither a number of at least 0 nor `None`.
    """

    def __init__(self, path: str | Path, *, refresh_every: float | None = 1.0) -> None:
        if refresh_every is not None and (not is_number(refresh_every) or refresh_every < 0):
            raise ConfigurationError(
                "refresh_every", f"{refresh_every!r} is neither a number of seconds nor None (never)"
            )
        self.refresh_every = refresh_every
        self._path = Path(path)
        self._last: tuple[tuple[int, int, int], Mapping[str, Plan]] | None = None
        """The file's stat when it was last read, and its plans. One tuple, because threads replace both together."""

    def load(self) -> Mapping[str, Plan]:
        """All plans by name; the last valid ones if the file became invalid.

        Raises:
            ConfigurationError: the first load of an invalid file.
        """
        last = self._last
        try:
            seen = _marks(self._path)
            if last is not None and seen == last[0]:
                return last[1]
            plans = read_plans(self._path)
            if last is not None and seen != _marks(self._path):
                return last[1]  # it is being saved: what was read may be incomplete; the next load reads it again
            if last is not None and last[1] and not seen[1]:
                raise ConfigurationError("plans", "the file is empty; to remove all plans write [plans]")
        except (OSError, ConfigurationError) as error:
            problem = error if isinstance(error, ConfigurationError) else _unreadable(self._path, error)
            if last is None:
                raise problem from None
            if isinstance(error, OSError):
                log.warning("plans stay as they were: %s", problem)
            else:
                self._last = seen, last[1]
                log.warning("plans stay as they were: %s: %s", self._path, problem)
            return last[1]
        self._last = seen, plans
        return plans


def read_plans(path: Path) -> dict[str, Plan]:
    """The plans of a file.

    Raises:
        ConfigurationError: the file can't be read; names the field that is wrong.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigurationError(str(path), f"is not UTF-8: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(str(path), f"is not TOML: {error}") from None
    tables = document.get("plans", {})
    if not isinstance(tables, Mapping):
        raise ConfigurationError("plans", "write a table for each plan, for example [plans.gold]")
    plans: dict[str, Plan] = {}
    for name, table in tables.items():
        try:
            plans[name] = plan_from(name, table)
        except ConfigurationError as error:
            raise ConfigurationError(f"plans.{name}.{error.field}", error.problem) from None
    return plans


def _marks(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    # The inode too: an editor that replaces the file may keep time and size.
    return status.st_mtime_ns, status.st_size, status.st_ino


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(str(path), f"can't be read: {error.strerror or error}")
