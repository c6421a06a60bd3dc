"""Find the shipped experiments by name, and print commands as a user can type them.

In a checkout the experiments are beside the package, in an installed wheel inside it.
"""

import difflib
import os
import shlex
import shutil
import sys
from pathlib import Path

from coordexp.errors import ConfigError

_FOLDER = "experiments"


def shipped_experiments() -> Path:
    """Return the folder of the experiments that come with coordexp."""
    package = Path(__file__).parent
    inside = package / _FOLDER
    return inside if inside.is_dir() else package.parent / _FOLDER


def find_experiment(path: Path, *, folder: str = ".") -> Path:
    """Return the configuration file that a person means by a path.

    If the file exists, it is meant. If not, the shipped experiment of that name is: ``tiny``, ``tiny.yaml`` and
    ``experiments/tiny.yaml`` are all found in an empty folder.

    Args:
        path: as the person wrote it.
        folder: a folder of the shipped experiments that is searched too, such as ``sweeps``.

    Raises:
        ConfigError: if there is neither; it names the nearest one.
    """
    if path.exists() or path.is_absolute():
        return path  # the reader reports what is wrong with it
    shipped = shipped_experiments()
    name = path.relative_to(_FOLDER) if path.parts[:1] == (_FOLDER,) else path
    if ".." not in name.parts:
        for candidate in (shipped / name, shipped / folder / name):
            for file in (candidate, candidate.with_name(f"{candidate.name}.yaml")):
                if file.is_file():
                    return file
    if not shipped.is_dir():
        raise ConfigError(
            f"{path}: there is no such file, and the experiments that come with coordexp are not in {shipped}: "
            "expected that folder in what was submitted"
        )
    names = sorted(file.stem for file in (shipped / folder).iterdir() if file.is_file())
    close = difflib.get_close_matches(name.stem, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}"
    raise ConfigError(f"{path}: there is no such file, and none of that name comes with coordexp; {hint}")


def command(*words: str | Path) -> str:
    """Return ``coordexp WORDS`` for this environment, quoted for a shell.

    If the shell would not find the command, it is named by its path. If it is not installed, as in a submitted copy of
    a checkout, it is ``python -m coordexp``.
    """
    script = Path(sys.executable).with_name("coordexp")
    program = [_typed(script)] if script.is_file() else [_typed(Path(sys.executable)), "-m", "coordexp"]
    return shlex.join([*program, *map(str, words)])


def python_command(*words: str | Path) -> str:
    """Return ``python WORDS`` for this environment, quoted for a shell."""
    return shlex.join([_typed(Path(sys.executable)), *map(str, words)])


def _typed(program: Path) -> str:
    """Return the shortest text by which a shell finds a program: its name, or its path from here, or its full path."""
    path_of_name = shutil.which(program.name)
    if path_of_name is not None and Path(path_of_name).absolute() == program.absolute():
        return program.name
    if not program.is_relative_to(Path.cwd()):
        return str(program)
    path = os.path.relpath(program)
    if os.sep in path:
        return path
    return os.path.join(os.curdir, path)  # a shell would search PATH for a bare name
