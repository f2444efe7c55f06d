"""`paceline completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from paceline.server.cli.parameters import Argument, Command
from paceline.server.cli.terminal import print_line

SHELLS = ("bash", "zsh", "fish")
ZSH_COMPLETION_SYSTEM = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
"""Starts zsh's completion if the user's .zshrc has not: click's script ends with "command not found: compdef" there.
It comes after the first line, which zsh reads if the script lies in a folder of `$fpath`."""


@click.command("completion", cls=Command)
@click.argument("shell", cls=Argument, type=click.Choice(SHELLS), metavar="SHELL", about="bash, zsh or fish.")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options on TAB in your shell.

    \b
    bash:  echo 'eval "$(paceline completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(paceline completion zsh)"' >> ~/.zshrc
    fish:  paceline completion fish > ~/.config/fish/completions/paceline.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click completes all of SHELLS"
    # `main` runs the command line under this name, so click listens to this variable.
    script = kind(context.find_root().command, {}, "paceline", "_PACELINE_COMPLETE").source()
    if shell == "zsh":
        script = script.replace("\n", f"\n{ZSH_COMPLETION_SYSTEM}\n", 1)
    print_line(script)
