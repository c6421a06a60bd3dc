"""Where a merge reads and writes: its base, and an output that appears whole or not at all."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path

from safetensors import SafetensorError

from coordexp.errors import CheckpointError
from coordexp.files import replace_directory
from coordexp.model.checkpoint.adapter import AdapterInfo
from coordexp.model.checkpoint.find import find_checkpoint


def base_of(adapter: AdapterInfo, base: str | Path | None) -> Path:
    """Return the directory of an adapter's base: ``base`` if it is given, else what the adapter names.

    Raises:
        CheckpointError: if there is none.
    """
    if base is not None:
        return find_checkpoint(base)
    if adapter.base.path is None:
        raise CheckpointError(f"{adapter.directory} does not name its base; give the base checkpoint")
    return find_checkpoint(adapter.base.path, revision=adapter.base.revision)


def checked_output(output: str | Path, *, overwrite: bool, inputs: Sequence[Path], marker: str = "config.json") -> Path:
    """Check where to write, and return its absolute path.

    Args:
        output: a directory, there or not.
        overwrite: whether it may be replaced.
        inputs: directories that are read.
        marker: the file by which a directory that may be replaced is known.

    Raises:
        CheckpointError: if ``output`` exists, holds something else, or lies in or around an input.
    """
    target = Path(output).expanduser().absolute()
    for path in inputs:
        place, read = target.resolve(), path.resolve()
        if place == read:
            raise CheckpointError(f"{output}: is an input of the merge; expected another directory")
        if read in place.parents:
            raise CheckpointError(f"{output}: lies inside {path}, an input of the merge; expected another directory")
        if place in read.parents:
            raise CheckpointError(f"{output}: holds {path}, an input of the merge; expected another directory")
    if not target.exists():
        return target
    if not overwrite:
        raise CheckpointError(f"{output}: exists; give another directory, or overwrite it on purpose (--overwrite)")
    if not target.is_dir() or (any(target.iterdir()) and not (target / marker).is_file()):
        raise CheckpointError(f"{output}: holds something else than a checkpoint; it is not overwritten")
    return target


@contextlib.contextmanager
def building_of(output: Path) -> Generator[Path]:
    """Yield a folder that becomes ``output`` if the block ends well.

    Raises:
        CheckpointError: if it cannot be written.
    """
    try:
        with replace_directory(output) as building:
            yield building
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{output}: the merged checkpoint cannot be written ({error})") from None
