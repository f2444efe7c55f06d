"""`--plot`: a picture beside a command's answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import InvalidInput
from paceline.extras import require
from paceline.server.cli.terminal import print_status

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_plot(path: Path, *others: str) -> None:
    """Checks that a picture can be drawn, before the work that it shows; names `others` that are missing, too.

    Raises:
        MissingExtra: matplotlib is not installed.
        InvalidInput: its folder does not exist, or it is a folder itself.
    """
    require("--plot", *others, "plot")
    if path.is_dir():
        raise InvalidInput("--plot", f"{path} is a folder; give a file in it")
    if not path.parent.is_dir():
        raise InvalidInput("--plot", f"{path} can't be written: there is no folder {path.parent}")


def save_plot(picture: Callable[[], Figure], path: Path) -> None:
    """Draws a picture into a .png, .svg or .pdf file; a name without a kind gets .png.

    Raises:
        InvalidInput: the file can't be written, is a folder, or is of another kind.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if path.is_dir():
        raise InvalidInput("--plot", f"{path} is a folder; give a file in it")
    name = path.name.rstrip(".")
    if not Path(name).suffix:
        path = path.with_name(f"{name}.png")
    try:
        picture().savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidInput("--plot", f"{path} can't be written: {error}") from None
    print_status(f"drawn into {path}")
