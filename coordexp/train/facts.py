"""What a finished run knows of its training, for the card of its checkpoint."""

from collections.abc import Mapping

from coordexp.config.schema import RunConfig
from coordexp.errors import counted
from coordexp.metrics import SERVED_AP, MetricName
from coordexp.model.merging.card import TrainingFacts
from coordexp.runs.folder import RunFolder
from coordexp.runs.rows import read_rows
from coordexp.train.setup.components import Components
from coordexp.train.setup.data import set_of_run

_FIGURES = ("AP", "AP50", "AP75")


def training_facts(config: RunConfig, parts: Components) -> TrainingFacts:
    """Return the facts of a run whose final evaluation is committed."""
    experiment, vocab = config.experiment, parts.encoding.vocab
    weights = {weighted.term.name: weighted.weight for weighted in parts.criterion.terms if weighted.weight}
    measured = _measured(config)
    loss = ", ".join(f"{weight:g} {name}" for name, weight in weights.items())
    return TrainingFacts(
        base=config.model.path,
        revision=config.model.revision,
        run=f"{experiment.name}, group {experiment.group}, seed {experiment.seed}",
        group=f"{experiment.group}, seed {experiment.seed}, {config.training.num_steps:,} steps; its loss: {loss}",
        data=_data(config, parts),
        reading=config.reading,
        figures=_figures(config, measured),
        served=served_sentence(measured),
        structure=None if vocab.numbers.are_text else vocab.structure,
        trained_with=parts.encoding.trained_with,
    )


def _data(config: RunConfig, parts: Components) -> str:
    records = set_of_run(config).record.splits
    trained, measured = records["train"].name, records["val"].name
    num_trained, num_measured = len(parts.train.samples), len(parts.val.samples)
    return (
        f"trained on {trained} ({counted(num_trained, 'picture')}), "
        f"measured on {measured} ({counted(num_measured, 'picture')})"
    )


def _measured(config: RunConfig) -> dict[str, float]:
    """Return the last value of every metric of a run."""
    measured: dict[str, float] = {}
    for row in read_rows(RunFolder.of(config).metrics):
        measured |= row.metrics
    return measured


def _figures(config: RunConfig, measured: Mapping[str, float]) -> dict[str, str]:
    """Return AP under each decoding, read as the group is; what is undefined is left out."""
    figures: dict[str, str] = {}
    for decoding in config.evaluation.decoding:
        values = {name: measured.get(str(MetricName(decoding, name, config.reading))) for name in _FIGURES}
        figures[decoding] = ", ".join(f"{name} {value:.3f}" for name, value in values.items() if value is not None)
    return figures


def served_sentence(measured: Mapping[str, float]) -> str:
    """Say which AP a client of a server has, who sees no distribution; "" where that was not measured."""
    argmax = measured.get(str(MetricName("constrained", "AP", "argmax")))
    whole = measured.get(str(MetricName("constrained", "AP", "expected")))
    by_tokens = {number: measured.get(f"constrained/expected/{name}") for number, name in SERVED_AP.items()}
    known = [f"{value:.3f} over {number}" for number, value in by_tokens.items() if value is not None]
    if argmax is None or whole is None or not known:
        return ""
    means = ", ".join(known)
    return (
        f"{argmax:.3f} by the tokens as written; by the mean over the likeliest tokens {means}; {whole:.3f} over the "
        "whole distribution, which a server does not return"
    )
