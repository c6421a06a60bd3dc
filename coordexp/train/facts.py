"""What the card of a merged checkpoint says about its training."""

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
    experiment = config.experiment
    vocab = parts.encoding.vocab
    metrics = _last_metrics(config)
    on = [weighted for weighted in parts.criterion.terms if weighted.weight]
    loss = ", ".join(f"{weighted.weight:g} {weighted.term.name}" for weighted in on)
    return TrainingFacts(
        base=config.model.path,
        revision=config.model.revision,
        run=f"{experiment.name}, group {experiment.group}, seed {experiment.seed}",
        group=f"{experiment.group}, seed {experiment.seed}, {config.training.num_steps:,} steps; its loss: {loss}",
        data=_data_sentence(config, parts),
        reading=config.reading,
        figures=_figures(config, metrics),
        served=served_sentence(metrics),
        structure=None if vocab.numbers.are_text else vocab.structure,
        trained_with=parts.encoding.trained_with,
    )


def _data_sentence(config: RunConfig, parts: Components) -> str:
    splits = set_of_run(config).record.splits
    num_train = counted(len(parts.train.samples), "picture")
    num_val = counted(len(parts.val.samples), "picture")
    return f"trained on {splits['train'].name} ({num_train}), measured on {splits['val'].name} ({num_val})"


def _last_metrics(config: RunConfig) -> dict[str, float]:
    """Return the last committed value of every metric of a run, by name."""
    metrics: dict[str, float] = {}
    for row in read_rows(RunFolder.of(config).metrics):
        metrics |= row.metrics
    return metrics


def _figures(config: RunConfig, metrics: Mapping[str, float]) -> dict[str, str]:
    """Return AP under each decoding, of the boxes that the group is compared by; an undefined AP is left out."""
    figures: dict[str, str] = {}
    for decoding in config.evaluation.decoding:
        values = {name: metrics.get(str(MetricName(decoding, name, config.reading))) for name in _FIGURES}
        figures[decoding] = ", ".join(f"{name} {value:.3f}" for name, value in values.items() if value is not None)
    return figures


def served_sentence(metrics: Mapping[str, float]) -> str:
    """Say which AP the client of a server gets.

    A server returns the written tokens and the probabilities of the likeliest few, and no whole distribution. AP is
    therefore measured for each number of likeliest tokens too (``SERVED_AP``).

    Returns:
        A sentence, or "" if the run did not measure it.
    """
    argmax_ap = metrics.get(str(MetricName("constrained", "AP", "argmax")))
    expected_ap = metrics.get(str(MetricName("constrained", "AP", "expected")))
    means: list[str] = []
    for num_tokens, name in SERVED_AP.items():
        ap = metrics.get(f"constrained/expected/{name}")
        if ap is not None:
            means.append(f"{ap:.3f} over {num_tokens}")
    if argmax_ap is None or expected_ap is None or not means:
        return ""
    return (
        f"{argmax_ap:.3f} by the tokens as written; by the mean over the likeliest tokens {', '.join(means)}; "
        f"{expected_ap:.3f} over the whole distribution, which a server does not return"
    )
