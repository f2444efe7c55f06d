"""Commands that only read create no database where there was none, and migrate none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import NotFound, PacelineError
from paceline.server.cli.terminal import print_status
from paceline.server.settings import Settings
from paceline.sql.migration_policy import Migrations, permitting


@contextmanager
def read_only_settings() -> Iterator[Settings]:
    """The settings, for a command that changes nothing.

    Where the SQLite file does not exist, the command works on an empty database in memory, and one line on standard
    error names the file.
    """
    settings = Settings.load()
    file = missing_file(settings)
    with permitting(Migrations.NEVER):
        if file is None:
            yield settings
            return
        if not file.absolute().parent.is_dir():
            raise PacelineError(f"unable to open database file {file}: its folder does not exist")
        try:
            yield settings.model_copy(update={"database_url": "memory://"})
        except NotFound as error:
            raise PacelineError(f"{error}: the database file {file} does not exist") from None
    print_status(f"the database file {file} does not exist yet; this is the answer of an empty one")


def missing_file(settings: Settings) -> Path | None:
    """The SQLite file that the settings name, if it is not there."""
    file = sqlite_file(settings.database_url)
    return file if file is not None and not file.exists() else None


def sqlite_file(url: str) -> Path | None:
    """The file a SQLite URL names, if it names one."""
    scheme, _, rest = url.partition("://")
    path = rest.partition("?")[0].removeprefix("/")
    return Path(path) if scheme.startswith("sqlite") and path and not path.startswith(":") else None
