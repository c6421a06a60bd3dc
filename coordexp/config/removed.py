"""Keys and commands that 0.2 removed, each with one sentence for those who still use it."""

from collections.abc import Mapping, Sequence

_SCORE = "the learned score is not built any more; scores are coord, desc, coord_desc and constant"
_ORACLE = "answers are no longer sampled for the recall of their union"
_MLFLOW = "run mlflow server itself, as in ray_jobs/compose.yaml"

KEYS: Mapping[str, str] = {
    "cluster.min_workers": "a run waits for its workers and continues from its last checkpoint",
    "cluster.strategy: zero3": "ZeRO-3 was never measured; zero2 and ddp stay",
    "data.holdout_images": _SCORE,
    "data.noise_objects": "made-up objects are not built any more",
    "data.packing": "length buckets fill .98 of a batch",
    "evaluation.oracle_k": _ORACLE,
    "evaluation.oracle_temperature": _ORACLE,
    "evaluation.score: learned": _SCORE,
    "evaluation.score_boxes": _SCORE,
    "objective.end_token_weight": "the end token weighs as every text token does",
}
"""Dotted key, or key and value, -> why it is not needed."""

COMMANDS: Mapping[str, str] = {
    "evaluate --oracle-k": _ORACLE,
    "evaluate --oracle-temperature": _ORACLE,
    "merge --format": "a merge writes a Hugging Face checkpoint; PEFT reads the adapter itself",
    "mlflow-server": _MLFLOW,
    "new --train-annotations": "give data.train_annotations=FILE, data.train_images=DIR and the same for val",
    "new group": "copy examples/group.yaml, whose comments say what to change",
    "new loss": "copy examples/loss_term.py to coordexp/losses/terms/; a loss term is one file",
    "prepare --workers": "prepare opens no picture; coordexp doctor decodes them all",
}
"""A verb, its sub-verb or its option -> what to do instead."""


def removed_key(key: str, value: object = None) -> str | None:
    """Return the sentence on a key, or a value of it, that was removed; None for any other."""
    if key in KEYS:
        return f"{key} was removed in 0.2: {KEYS[key]}; delete the key"
    key_and_value = f"{key}: {value}"
    if key_and_value in KEYS:
        return f"{key_and_value} was removed in 0.2: {KEYS[key_and_value]}"
    return None


def removed_command(arguments: Sequence[str]) -> str | None:
    """Return the sentence on a verb or option of ``coordexp`` that was removed; None for any other."""
    for command, reason in COMMANDS.items():
        if _is_called(command, arguments):
            return f"coordexp {command} was removed in 0.2: {reason}"
    return None


def _is_called(command: str, arguments: Sequence[str]) -> bool:
    """Return whether arguments call a verb, a sub-verb, which stands right behind it, or an option, anywhere."""
    verb, *sub_verb_or_option = command.split()
    if arguments[:1] != [verb]:
        return False
    if not sub_verb_or_option:
        return True
    (name,) = sub_verb_or_option
    names = [argument.partition("=")[0] for argument in arguments[1:]]
    return name in names if name.startswith("-") else names[:1] == [name]
