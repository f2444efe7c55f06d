"""`--plot`: a picture beside a command's answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import InvalidInput
from headgate.server.cli.terminal import print_status

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_plot(picture: Callable[[], Figure], path: Path) -> None:
    """Draws a picture into a .png, .svg or .pdf file.

    Raises:
        InvalidInput: the file can't be written, or is of another kind.
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        picture().savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidInput("--plot", f"{path} can't be written: {error}") from None
    print_status(f"drawn into {path}")
