"""The names under which other trainers save weights.

- transformers itself reads names without ``model.``, and older names of a family that it knows.
- Wrappers of training (DDP, DeepSpeed, torch.compile) put a prefix before every name. :func:`wrapper_of` finds it, and
  transformers is told to leave it out.
- Any other name is refused. :func:`other_names_sentence` pairs it with the name that the model has.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import tensor_names, weight_files
from coordexp.model.checkpoint.weights import TensorSpec

_ROOT = "model."  # nearly all names of a model begin with it, so as a common prefix it need not be a wrapper's
_HEAD = "lm_head."
_PARTS = ("language_model", "visual", "layers", "embed_tokens", "lm_head")  # parts of a model, in any family
_LORA = re.compile(r"\.(lora_[AB]|lora_magnitude_vector|base_layer|modules_to_save)\.")
_NUM_PAIRS_SHOWN = 2


def stored_names(directory: Path) -> list[str]:
    """Return the names of all tensors in a checkpoint's safetensors files."""
    return [name for file in weight_files(directory) for name in tensor_names(file)]


def wrapper_of(names: Collection[str]) -> str:
    """Return the prefix that a wrapper put before every name, such as ``module.`` or ``_orig_mod.``; mostly ""."""
    if not names:
        return ""
    # A prefix that the first and the last of the sorted names share is shared by all. It ends before a part of the
    # model, because all names of a file with the vision tower alone begin with "visual.".
    prefix = ""
    for word, last_word in zip(min(names).split("."), max(names).split("."), strict=False):
        if word != last_word or word in _PARTS:
            break
        prefix += f"{word}."
    # If the head is tied and not stored, every name of an ordinary checkpoint begins with the model's own "model.".
    if prefix.endswith(_ROOT) and not any(name.startswith((prefix + _ROOT, prefix + _HEAD)) for name in names):
        prefix = prefix.removesuffix(_ROOT)
    return prefix


def check_gathered(title: str, specs: Mapping[str, TensorSpec]) -> None:
    """Raise a CheckpointError for empty tensors, which DeepSpeed ZeRO-3 leaves if a rank saves only its own share."""
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
    """Say which stored names a model does not know, which names it expects instead, and how to rename them.

    Args:
        missing: names that the model has and the files have not.
        unknown: stored names that the model does not have, without the wrapper's prefix.
        stored: all names in the files.
        wrapper: prefix of all stored names.
    """
    of_all = f"{len(unknown)} of {len(stored)} weights in the files"
    lora = [name for name in unknown if _LORA.search(name)]
    if lora:
        return (
            f"{of_all} are unknown to the model of config.json, {len(lora)} of them an adapter's, e.g. {lora[0]}: a "
            "PEFT model was saved whole; save merge_and_unload() of it, or its adapter alone"
        )
    pairs = _pair_names(unknown, missing)
    if 2 * len(pairs) < len(missing):  # most names have no partner: these are the weights of another model
        return (
            f"{of_all} are unknown to the model of config.json, e.g. {unknown[0]}, and {len(missing)} that it needs "
            f"are missing, e.g. {missing[0]}; take config.json and weights from one checkpoint"
        )

    pairs_by_prefixes: dict[tuple[str, str], list[_NamePair]] = {}
    for pair in pairs:
        prefixes = (wrapper + pair.stored_prefix, pair.expected_prefix)
        pairs_by_prefixes.setdefault(prefixes, []).append(pair)
    most_first = sorted(pairs_by_prefixes.items(), key=lambda item: -len(item[1]))
    sentences: list[str] = []
    for (stored_prefix, expected_prefix), members in most_first[:_NUM_PAIRS_SHOWN]:
        example = members[0]
        sentences.append(
            f"{len(members)} of {len(stored)} weights begin with {stored_prefix!r} where the model of config.json has "
            f"{expected_prefix!r}, e.g. {wrapper}{example.stored} for {example.expected}"
        )
    mapping: dict[str, str] = {}
    for (stored_prefix, expected_prefix), members in most_first:
        mapping[_pattern(stored_prefix, members)] = expected_prefix
    if wrapper:
        mapping[f"^{re.escape(wrapper)}"] = ""
    return f"{'; '.join(sentences)}; rename them with key_mapping={mapping} (docs/your-model.md)"


@dataclass(frozen=True)
class _NamePair:
    """A stored name and the name that the model expects in its place; both end with ``tail``."""

    stored: str
    expected: str
    tail: str

    @property
    def stored_prefix(self) -> str:
        return self.stored.removesuffix(self.tail)

    @property
    def expected_prefix(self) -> str:
        return self.expected.removesuffix(self.tail)


def _pair_names(unknown: Sequence[str], missing: Collection[str]) -> list[_NamePair]:
    """Pair stored names with missing names that have the same end.

    First pass: names whose longest common end belongs to a single missing name. Second pass: names with an ambiguous
    end, such as ``norm.weight``, are paired if their prefix was replaced in the same way in the first pass.
    """
    missing_by_tail: dict[str, list[str]] = {}
    for name in missing:
        for tail in _tails(name):
            missing_by_tail.setdefault(tail, []).append(name)
    pairs: list[_NamePair] = []
    ambiguous: list[str] = []
    for name in unknown:
        longest_tail = next((tail for tail in _tails(name) if tail in missing_by_tail), "")
        candidates = missing_by_tail.get(longest_tail, [])
        if len(candidates) == 1:
            pairs.append(_NamePair(name, candidates[0], longest_tail))
        else:
            ambiguous.append(name)

    missing_names = set(missing)
    prefixes = dict.fromkeys((pair.stored_prefix, pair.expected_prefix) for pair in pairs)
    for name in ambiguous:
        for stored_prefix, expected_prefix in prefixes:
            tail = name.removeprefix(stored_prefix)
            if name.startswith(stored_prefix) and expected_prefix + tail in missing_names:
                pairs.append(_NamePair(name, expected_prefix + tail, tail))
                break
    return pairs


def _tails(name: str) -> list[str]:
    """Return the ends of a name, the longest first, without its last word alone: ``weight`` identifies nothing."""
    words = name.split(".")
    return [".".join(words[start:]) for start in range(len(words) - 1)]


def _pattern(prefix: str, pairs: Iterable[_NamePair]) -> str:
    """Return the regular expression by which transformers' ``key_mapping`` finds the names of some pairs."""
    next_words = sorted({pair.tail.partition(".")[0] for pair in pairs})
    return f"^{re.escape(prefix)}(?=({'|'.join(next_words)})\\.)"
