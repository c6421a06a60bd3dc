"""The names under which other trainers save weights: what a wrapper puts before all of them, and what else differs.

transformers itself reads names without ``model.`` and, where it knows them, older names of a family. What a wrapper of
training (DDP, DeepSpeed, torch.compile) puts before every name, it can be told to leave out. Any other name is reported
beside the one that the model has.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import tensor_names, weight_files
from coordexp.model.checkpoint.weights import TensorSpec

_ROOT = "model."  # of nearly all names of a model: before all of them it need not be a wrapper's
_HEAD = "lm_head."
_PARTS = ("language_model", "visual", "layers", "embed_tokens", "lm_head")  # within it, in any family
_LORA = re.compile(r"\.(lora_[AB]|lora_magnitude_vector|base_layer|modules_to_save)\.")
_NUM_PAIRS_SHOWN = 2


def stored_names(directory: Path) -> list[str]:
    """Return the names of all tensors in a checkpoint's safetensors files."""
    return [name for file in weight_files(directory) for name in tensor_names(file)]


def wrapper_of(names: Collection[str]) -> str:
    """Return what a wrapper put before every name, with its dot: ``module.``, ``_orig_mod.``, ...; mostly ""."""
    if not names:
        return ""
    # What the first and the last of sorted names share, all of them share. A part of the model ends it, which files
    # that hold no more than the vision tower have in common.
    prefix = ""
    for part, other in zip(min(names).split("."), max(names).split("."), strict=False):
        if part != other or part in _PARTS:
            break
        prefix += f"{part}."
    # Where the head is not stored, every name of an ordinary checkpoint begins with the model's own ``model.``.
    if prefix.endswith(_ROOT) and not any(name.startswith((prefix + _ROOT, prefix + _HEAD)) for name in names):
        prefix = prefix.removesuffix(_ROOT)
    return prefix


def check_gathered(title: str, specs: Mapping[str, TensorSpec]) -> None:
    """Refuse the empty tensors that DeepSpeed ZeRO-3 leaves where a rank saves its share alone."""
    empty = sorted(name for name, spec in specs.items() if 0 in spec.shape)
    if empty:
        raise CheckpointError(
            f"{title}: {len(empty)} of {len(specs)} weights are empty, e.g. {empty[0]}: DeepSpeed ZeRO-3 saved a "
            "rank's share; gather the weights with zero_to_fp32.py of the training's checkpoint, or save again with "
            "stage3_gather_16bit_weights_on_model_save: true"
        )


def other_names_sentence(
    *, missing: Sequence[str], unknown: Sequence[str], stored: Collection[str], wrapper: str
) -> str:
    """Say which stored names a model does not know, which names it has in their place, and how to rename them.

    Args:
        missing: names that the model has and the files have not.
        unknown: stored names that the model does not have, without the wrapper's prefix.
        stored: all names in the files.
        wrapper: what stands before all of them.
    """
    of_all = f"{len(unknown)} of {len(stored)} weights in the files"
    lora = [name for name in unknown if _LORA.search(name)]
    if lora:
        return (
            f"{of_all} are unknown to the model of config.json, {len(lora)} of them an adapter's, e.g. {lora[0]}: a "
            "PEFT model was saved whole; save merge_and_unload() of it, or its adapter alone"
        )
    pairs = _paired(unknown, missing)
    if 2 * len(pairs) < len(missing):  # another model's
        return (
            f"{of_all} are unknown to the model of config.json, e.g. {unknown[0]}, and {len(missing)} that it needs "
            f"are missing, e.g. {missing[0]}; take config.json and weights from one checkpoint"
        )
    by_prefixes: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for pair in pairs:
        name, expected, tail = pair
        by_prefixes.setdefault((wrapper + _head(name, tail), _head(expected, tail)), []).append(pair)
    most_first = sorted(by_prefixes.items(), key=lambda item: -len(item[1]))
    parts = [
        f"{len(members)} of {len(stored)} weights begin with {got!r} where the model of config.json has {wanted!r}, "
        f"e.g. {wrapper}{members[0][0]} for {members[0][1]}"
        for (got, wanted), members in most_first[:_NUM_PAIRS_SHOWN]
    ]
    mapping = {_pattern(got, members): wanted for (got, wanted), members in most_first}
    mapping |= {f"^{re.escape(wrapper)}": ""} if wrapper else {}
    return f"{'; '.join(parts)}; rename them with key_mapping={mapping} (docs/your-model.md)"


def _paired(unknown: Sequence[str], missing: Collection[str]) -> list[tuple[str, str, str]]:
    """Return the stored names that end as a missing name does: both names, and their common end.

    An end that several missing names have, such as ``norm.weight``, counts where the prefixes are those of others.
    """
    by_tail: dict[str, list[str]] = {}
    for name in missing:
        for tail in _tails(name):
            by_tail.setdefault(tail, []).append(name)
    pairs: list[tuple[str, str, str]] = []
    ambiguous: list[str] = []
    for name in unknown:
        tail = next((tail for tail in _tails(name) if tail in by_tail), "")
        candidates = by_tail.get(tail, [])
        if len(candidates) == 1:
            pairs.append((name, candidates[0], tail))
        else:
            ambiguous.append(name)

    needed = set(missing)
    prefixes = dict.fromkeys((_head(name, tail), _head(expected, tail)) for name, expected, tail in pairs)
    for name in ambiguous:
        for got, wanted in prefixes:
            tail = name.removeprefix(got)
            if name.startswith(got) and wanted + tail in needed:
                pairs.append((name, wanted + tail, tail))
                break
    return pairs


def _tails(name: str) -> list[str]:
    """Return the ends of a name that say something, the longest first: ``weight`` alone says nothing."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts) - 1)]


def _head(name: str, tail: str) -> str:
    return name[: len(name) - len(tail)]


def _pattern(prefix: str, pairs: Iterable[tuple[str, str, str]]) -> str:
    """Return what transformers' ``key_mapping`` needs to find the names of some pairs by their prefix."""
    next_parts = sorted({tail.partition(".")[0] for _, _, tail in pairs})
    return f"^{re.escape(prefix)}(?=({'|'.join(next_parts)})\\.)"
