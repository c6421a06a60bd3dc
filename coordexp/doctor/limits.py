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
    """Say how many boxes are never learnt and how many never written; more than a twentieth is a warning.

    Args:
        run: its limits.
        splits: the splits that could be read; the limits of a missing split are not checked.
        encoding: None if the tokenizer is not on this machine. Then objects are counted, and tokens are not.
    """
    if "train" in splits and encoding is None:
        capped = over_max_objects(splits["train"].samples, run.data.max_objects)
        yield _of_training(run, [capped])
    if encoding is None or len(splits) < 2:
        return
    train, val = splits["train"].samples, splits["val"].samples
    try:
        limits = encoding.box_limits(encoding.dataset(train), train, val)
    except DataError:  # a description or an image that no limit could hold; another check reports it
        return
    yield _of_training(run, limits.on_training)
    answers = limits.max_new_tokens
    all_fit = f"all {answers.num_boxes:,} fit into an answer of {answers.key} {answers.limit:,}"
    yield _finding(_check("val", run), unwritten(answers), all_fit, is_grave=too_many([answers]))


def _of_training(run: RunConfig, limits: Sequence[CutBoxes]) -> Finding:
    """Return the finding about boxes that are never learnt, under all ``limits`` together."""
    keys = " and ".join(f"{limit.key} {limit.limit:,}" for limit in limits)
    all_learnt = f"all {limits[0].num_boxes:,} are learnt under {keys}"
    cut = unlearnt(limits, ordering=run.data.ordering)
    return _finding(_check("train", run), cut, all_learnt, is_grave=too_many(limits))


def _finding(check: str, cut: str, nothing_cut: str, *, is_grave: bool) -> Finding:
    """Return a finding that says ``cut``, what is cut, or if that is "" ``nothing_cut``."""
    if is_grave:
        return warning(check, cut)
    return ok(check, cut or nothing_cut)


def _check(split: Split, run: RunConfig) -> str:
    """Return the name of the check. An ablation may have coord tokens and digits, and digits take more tokens."""
    return f"{split} boxes in digits" if run.text_arm else f"{split} boxes"
