"""How many boxes the limits on objects and tokens take away, counted as a run counts them."""

from collections.abc import Mapping, Sequence

from coordexp.config.schema import RunConfig
from coordexp.data.box_limits.count import over_max_objects
from coordexp.data.box_limits.cut_boxes import CutBoxes, too_many, unlearnt, unwritten
from coordexp.data.sample import Split
from coordexp.data.split_data import SplitData
from coordexp.errors import DataError
from coordexp.findings import Check, Finding, ok, warning
from coordexp.train.setup.encoding import Encoding


def examine_limits(run: RunConfig, splits: Mapping[Split, SplitData], encoding: Encoding | None) -> Check[None]:
    """Say how many boxes are never learnt and never written; a warning above a twentieth of them.

    Args:
        run: its limits.
        splits: the splits that could be read; a limit on one that is not there is not looked at.
        encoding: None where the tokenizer is not here, so that only objects can be counted.
    """
    if "train" in splits and encoding is None:
        capped = over_max_objects(splits["train"].samples, run.data.max_objects)
        yield _of_training(run, [capped])
    if encoding is None or len(splits) < 2:
        return
    train, val = splits["train"].samples, splits["val"].samples
    try:
        limits = encoding.box_limits(encoding.dataset(train), train, val)
    except DataError:  # a description or an image that fits under no limit is a failure of another check
        return
    yield _of_training(run, limits.on_training)
    answers = limits.max_new_tokens
    every = f"all {answers.num_boxes:,} fit into an answer of {answers.key} {answers.limit:,}"
    yield _finding(_check("val", run), unwritten(answers), every, is_grave=too_many([answers]))


def _of_training(run: RunConfig, limits: Sequence[CutBoxes]) -> Finding:
    keys = " and ".join(f"{limit.key} {limit.limit:,}" for limit in limits)
    every = f"all {limits[0].num_boxes:,} are learnt under {keys}"
    return _finding(
        _check("train", run), unlearnt(limits, ordering=run.data.ordering), every, is_grave=too_many(limits)
    )


def _finding(check: str, cut: str, every: str, *, is_grave: bool) -> Finding:
    return warning(check, cut) if is_grave else ok(check, cut or every)


def _check(split: Split, run: RunConfig) -> str:
    """Return the name of the check: an ablation may have both arms, and digits take more tokens."""
    return f"{split} boxes{' in digits' if run.text_arm else ''}"
