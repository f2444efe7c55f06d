"""Prints the Python that `make` makes `.venv` with: the one that runs this, or a quicker one of the same version.

pyenv builds Python without optimizations unless told otherwise, and the tests take a sixth longer on such a build than
on a distribution's. So if this Python is one, and the system has its own of the same minor version that can make
environments, it is the system's. Run it:  python scripts/optimized_python.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig

PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def is_optimized() -> bool:
    """Whether this Python says that it was built so. A distribution's need not say it."""
    return "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))


def of_the_system(version: str) -> str | None:
    """The system's own Python, if it has this minor version and can make environments."""
    found = shutil.which("python3", path=os.defpath)
    if found is None:
        return None
    answer = subprocess.run([found, "-c", PROBE], capture_output=True, text=True, check=False)
    return found if answer.stdout.strip() == version else None


def chosen() -> str:
    here = sys.executable
    if is_optimized():
        return here
    return of_the_system("{}.{}".format(*sys.version_info)) or here


if __name__ == "__main__":
    sys.stdout.write(f"{chosen()}\n")
