"""Commands as they are printed: each can be typed as it stands, in the folder where it was printed."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def command(*words: str | Path) -> str:
    """Return ``coordexp WORDS`` for this environment, quoted for a shell.

    Where the shell would not find the command it is named by its path, and where it is not installed, as in a
    submitted copy of a checkout, it is ``python -m coordexp``.
    """
    script = Path(sys.executable).with_name("coordexp")
    program = [_typed(script)] if script.is_file() else [_typed(Path(sys.executable)), "-m", "coordexp"]
    return shlex.join([*program, *map(str, words)])


def _typed(program: Path) -> str:
    found = shutil.which(program.name)
    if found is not None and Path(found).absolute() == program.absolute():
        return program.name
    if not program.is_relative_to(Path.cwd()):
        return str(program)
    path = os.path.relpath(program)
    return path if os.sep in path else os.path.join(os.curdir, path)  # a bare name would be looked for on PATH
