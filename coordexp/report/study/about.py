"""What a report is about, so that it stands alone: what each group is, model, data, training, code and machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from coordexp.config.explain import validated
from coordexp.config.trees import value_at
from coordexp.errors import ConfigError, DataError, TrackingError
from coordexp.report.study.artifacts import Artifacts
from coordexp.report.study.data import ExperimentData, RunData, by_group

_HASH = 12
_COORD_TOKENS = "custom.coord_tokens.enabled"


@dataclass(frozen=True)
class TermUsed:
    """A loss term of positive weight.

    Attributes:
        weight: what multiplies it in the total loss.
        words: what it is, in a sentence.
        formula: its sum over a batch, which is divided by the number of ``unit``.
        knobs: its settings, "" where it has none.
    """

    name: str
    weight: float
    words: str
    formula: str
    unit: str
    knobs: str = ""


@dataclass(frozen=True)
class About:
    """What is compared, and how it was made, as far as it is on record.

    Attributes:
        groups: the terms of each group's loss; a group whose configuration cannot be read is absent.
        facts: pairs of a word and what is known of it.
        in_digits: groups that write their coordinates as digits of plain text.
    """

    groups: Mapping[str, tuple[TermUsed, ...]]
    facts: tuple[tuple[str, str], ...]
    in_digits: tuple[str, ...] = ()


def about(data: ExperimentData, artifacts: Artifacts) -> About | None:
    """Return what is known of the runs; None where there are only files of other detectors."""
    if not data.trained:
        return None
    runs = by_group(data.trained)
    terms = {group: _terms(members[0], artifacts) for group, members in runs.items()}
    facts = {
        "model": _each(data, _model),
        "data": _each(data, _data),
        "training": _training(data.trained),
        "decoding": _each(data, _decoding),
        "date": _dates(data.trained),
        "commit": ", ".join(dict.fromkeys(run.commit[:_HASH] for run in data.trained if run.commit)),
        "hardware": ", ".join(dict.fromkeys(run.hardware for run in data.trained if run.hardware)),
        "hours": _hours(data.trained),
    }
    return About(
        groups={group: found for group, found in terms.items() if found},
        facts=tuple((name, text) for name, text in facts.items() if text),
        in_digits=tuple(group for group in runs if terms[group] and writes_digits(runs[group][0], artifacts)),
    )


def writes_digits(run: RunData, artifacts: Artifacts) -> bool:
    """Return whether a run writes coordinates as digits of plain text, which have no distribution over bins."""
    return value_at(artifacts.config(run), _COORD_TOKENS) is False


def _terms(run: RunData, artifacts: Artifacts) -> tuple[TermUsed, ...]:
    """Return the terms of a run's configuration; none where that is not here, or of another version."""
    try:
        tree = artifacts.config(run)
        if not tree:
            return ()
        from coordexp.train.setup.weighted_terms import weighted_terms  # here: it brings torch, which takes seconds

        weighted = weighted_terms(validated(tree, where=lambda key: key))
    except (ConfigError, DataError, TrackingError):
        return ()
    return tuple(
        TermUsed(
            name=found.term.name,
            weight=found.weight,
            words=(type(found.term).__doc__ or "").partition("\n")[0],
            formula=found.term.formula.replace("`", ""),
            unit=found.term.unit.replace("_", " "),
            knobs=", ".join(f"{name} {value}" for name, value in found.term.model_dump().items()),
        )
        for found in weighted
        if found.weight > 0
    )


def _each(data: ExperimentData, text_of: Callable[[RunData], str]) -> str:
    """Return a text of all runs, or where they differ each with the groups it is of."""
    groups: dict[str, list[str]] = {}
    for run in data.trained:
        if (text := text_of(run)) and run.group not in (named := groups.setdefault(text, [])):
            named.append(run.group)
    if len(groups) < 2:
        return "".join(groups)
    return "; ".join(f"{', '.join(named)}: {text}" for text, named in groups.items())


def _model(run: RunData) -> str:
    tuning, rank = run.params.get("training.tuning", ""), run.params.get("training.lora.rank", "")
    names = {"full": "all weights trained", "lora": f"LoRA of rank {rank}", "dora": f"DoRA of rank {rank}"}
    adapter = names.get(tuning, tuning)
    return ", ".join(filter(None, (run.params.get("model.path", ""), adapter)))


def _data(run: RunData) -> str:
    if run.params.get("data.format") == "shapes":
        train, val = run.number("data.shapes.num_train"), run.number("data.shapes.num_val")
        return "" if train is None or val is None else f"drawn shapes: {train:,.0f} images to train, {val:,.0f} to test"
    train, val = (Path(run.params.get(f"data.{split}_annotations", "")).name for split in ("train", "val"))
    return f"trained on {train}, tested on {val}" if train and val else val


def _training(runs: tuple[RunData, ...]) -> str:
    """Return steps and images of a run, means over the finished ones."""
    finished = [run for run in runs if run.state == "finished"]
    if not finished:
        return ""
    images = [sum(values) for run in finished if (values := run.values("num_images"))]
    repeats = f", {fmean(images):,.0f} images with repeats" if images else ""
    return f"{fmean(run.step for run in finished):,.0f} steps a run{repeats}"


def _decoding(run: RunData) -> str:
    return " and ".join(run.params.get("evaluation.decoding", "").strip("[]").replace('"', "").split(", "))


def _dates(runs: tuple[RunData, ...]) -> str:
    starts = [run.started for run in runs if run.started is not None]
    ends = [run.ended for run in runs if run.ended is not None]
    times = [*([min(starts)] if starts else []), *([max(ends)] if starts and ends else [])]
    shown = " to ".join(datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M") for at in times)
    return shown and f"{shown} UTC"


def _hours(runs: tuple[RunData, ...]) -> str:
    train, whole = (
        sum(run.metrics.get(name, 0.0) for run in runs) / 3600 for name in ("final/train_seconds", "final/seconds")
    )
    if not train:
        return ""
    shown = [f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}" for hours in (train, whole)]
    return f"{shown[0]} of training, all runs added up" + (f"; {shown[1]} with evaluation" if whole else "")
