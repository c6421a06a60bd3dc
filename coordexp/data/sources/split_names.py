"""Which split the name of a file says, or the name of a folder on the way to it; in any case."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordexp.data.sample import SPLITS, Split
from coordexp.errors import DataError

# The words of a split, the best one first: without a validation split, the split for tests takes its place.
SPLIT_WORDS: Mapping[Split, tuple[str, ...]] = {"train": ("train", "trainval"), "val": ("val", "dev", "test")}


def rank_of_name(split: Split, path: Path, folder: Path) -> int | None:
    """Return how well the name of a file, or of its folders below ``folder``, says a split.

    The name nearest to the file decides, among those that say any split.

    Returns:
        The index of the word in ``SPLIT_WORDS``, 0 for the best; None if the names say another split, or none.
    """
    names = [path.stem, *(parent.name for parent in path.parents if folder in parent.parents)]
    for name in names:
        ranks: dict[Split, int] = {}
        for said_split, words in SPLIT_WORDS.items():
            matching = [rank for rank, word in enumerate(words) if _has_word(word, name)]
            if matching:
                ranks[said_split] = matching[0]
        if ranks:
            return ranks.get(split)
    return None


def rank_of_folder(split: Split, place: Path, folder: Path) -> int | None:
    """Return how well the name of a folder, or of one above it, says a split; as :func:`rank_of_name`."""
    return rank_of_name(split, place / "x", folder)


def says_split(split: Split, place: Path, folder: Path) -> bool:
    """Return whether the name of a folder, or of one above it, says a split."""
    return rank_of_folder(split, place, folder) is not None


def _has_word(word: str, name: str) -> bool:
    """Return whether a name holds a word by itself, or a form of it: valid, validation, training, trainset."""
    return re.search(rf"(^|[^a-z]){word}([^a-z]|id|idation|ing|set|$)", name.lower()) is not None


def by_split(paths: Sequence[Path], folder: Path) -> dict[Split, Path]:
    """Return the path that says each split best, if exactly one does.

    Raises:
        DataError: if several say a split equally well.
    """
    chosen: dict[Split, Path] = {}
    for split in SPLITS:
        ranked: list[tuple[int, Path]] = []
        for path in paths:
            rank = rank_of_name(split, path, folder)
            if rank is not None:
                ranked.append((rank, path))
        if not ranked:
            continue
        best_rank = min(rank for rank, _ in ranked)
        best = sorted(path for rank, path in ranked if rank == best_rank)
        # COCO's own files of boxes come before others.
        best = [path for path in best if path.name.startswith("instances")] or best
        if len(best) > 1:
            named = ", ".join(str(path.relative_to(folder)) for path in best[:6])
            raise DataError(
                f"{folder}: several annotation files say {split}: {named}; name one with data.{split}_annotations, "
                "beside the three other paths"
            )
        chosen[split] = best[0]
    return chosen
