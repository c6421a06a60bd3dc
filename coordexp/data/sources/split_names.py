"""Which split a name says: of a file, or of a folder on the way to it, in any case."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordexp.data.sample import SPLITS, Split
from coordexp.errors import DataError

# A split's words, the best one first: where there is no validation split, that for tests is one.
SPLIT_WORDS: Mapping[Split, tuple[str, ...]] = {"train": ("train", "trainval"), "val": ("val", "dev", "test")}


def rank_of_name(split: Split, path: Path, folder: Path) -> int | None:
    """Return how well the name of a file, or of its folders below ``folder``, says a split; None if it says another.

    0 is best. The name that is nearest to the file decides.
    """
    parts = [path.stem, *(parent.name for parent in path.parents if folder in parent.parents)]
    for part in parts:
        words = [(word, of) for of, several in SPLIT_WORDS.items() for word in several if _has_word(word, part)]
        if words:
            return next((SPLIT_WORDS[split].index(word) for word, of in words if of == split), None)
    return None


def says_split(split: Split, place: Path, folder: Path) -> bool:
    """Return whether the name of a folder, or of one above it, says a split."""
    return rank_of_name(split, place / "x", folder) is not None


def _has_word(word: str, name: str) -> bool:
    return re.search(rf"(^|[^a-z]){word}([^a-z]|id|idation|ing|set|$)", name.lower()) is not None


def by_split(paths: Sequence[Path], folder: Path) -> dict[Split, Path]:
    """Return the path that says each split best, where exactly one does.

    Raises:
        DataError: if several say a split equally well.
    """
    chosen: dict[Split, Path] = {}
    for split in SPLITS:
        ranks = {path: rank_of_name(split, path, folder) for path in paths}
        ranked = sorted((rank, path) for path, rank in ranks.items() if rank is not None)
        best = [path for rank, path in ranked if rank == ranked[0][0]]
        best = [path for path in best if path.name.startswith("instances")] or best
        if len(best) == 1:
            chosen[split] = best[0]
        elif best:
            named = ", ".join(str(path.relative_to(folder)) for path in best[:6])
            raise DataError(
                f"{folder}: several annotation files say {split}: {named}; name one with data.{split}_annotations, "
                "beside the three other paths"
            )
    return chosen
