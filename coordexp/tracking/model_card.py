"""The card of a merged checkpoint, ``merged/README.md``: what it is, how good, how to use it and to make it again."""

from collections.abc import Mapping

import yaml

from coordexp.config.keys import made_again
from coordexp.config.schema import ExperimentConfig
from coordexp.config.trees import Tree, merged
from coordexp.data.sources.source import source_of
from coordexp.errors import ComparisonError, DataError
from coordexp.files import write_text
from coordexp.metrics import MetricName
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.statistics.bootstrap import paired_bootstrap
from coordexp.statistics.intervals import LEVEL

_READINGS = {"expected": "the mean of each distribution", "argmax": "the most likely bin"}


def write_model_card(config: ExperimentConfig, *, metrics: Mapping[str, float]) -> None:
    """Write the card of a finished run into its merged checkpoint.

    Args:
        config: of the run.
        metrics: of its final evaluation.
    """
    from coordexp.train.setup.weighted_terms import weighted_terms  # here: it brings torch, and a report reads runs

    name = f"{config.experiment.name}, group {config.experiment.group}, seed {config.experiment.seed}"
    data = (
        config.data.train_annotations or f"{config.data.shapes.num_train:,} pictures of shapes that coordexp generates"
    )
    on = [(weighted.term, weighted.weight) for weighted in weighted_terms(config) if weighted.weight > 0]
    losses = "\n".join(f"| `{term.name}` | {weight:g} | {term.formula.replace('|', '&#124;')} |" for term, weight in on)
    verb = "train" if config.cluster.num_workers == 1 else "ablation"  # on Ray: this process is one worker
    text = f"""---
library_name: transformers
pipeline_tag: image-text-to-text
tags: [object-detection, qwen3_vl, coordexp]
---
# {name}

A Qwen3-VL that detects objects by writing them: a description and a box each. It was fine-tuned from
`{config.model.path}` by coordexp to compare losses on coordinates. It knows what its training data holds, and nothing
more is claimed of it.

- **Training data**: {data}; {config.training.num_steps:,} steps of {config.global_batch_size:,} images
- **Tuning**: {_tuning(config)}
- {_quality(config, metrics)}

| loss term | weight | sum over a batch, before it is divided by its count |
|---|---|---|
{losses}

## Use

```console
coordexp predict --model . PICTURE
```

The instruction of training was `{config.data.prompt}`; images had {_pixels(config)}.

## Make it again

Save this as `run.yaml` and run `coordexp {verb} --config run.yaml`:

```yaml
{yaml.safe_dump(_again(config), sort_keys=False, allow_unicode=True).strip()}
```
"""
    write_text(RunFolder.of(config).merged / "README.md", text)


def _again(config: ExperimentConfig) -> Tree:
    """Return the keys that make a run again; of several workers it is the one run of an ablation, on Ray."""
    tree = made_again(config)
    if config.cluster.num_workers == 1:
        return tree
    return merged(tree, {"ablation": {"groups": {}, "seeds": [config.experiment.seed]}})


def _tuning(config: ExperimentConfig) -> str:
    training = config.training
    if training.tuning == "full":
        return "all weights"
    where = "language model and vision tower" if training.lora.vision else "language model"
    adapter = f"{training.tuning} of rank {training.lora.rank} on the {where}"
    return f"{adapter}, and a coord-offset adapter" if config.trains_offset else adapter


def _quality(config: ExperimentConfig, metrics: Mapping[str, float]) -> str:
    """Return the headline AP with its interval, as the report computes it for a single run."""
    reading, ways = config.reading, config.evaluation.decoding
    decoding = "constrained" if "constrained" in ways else ways[0]
    value = metrics.get(str(MetricName(decoding, "AP", reading)))
    how = f"**COCO AP**, {decoding} decoding, boxes read by {_READINGS[reading]}: "
    if value is None:
        return f"{how}not defined, since no object there counts"
    detections = RunFolder.of(config).evaluation("final").decoding(decoding).detections(reading)
    try:
        annotations = source_of(config.data, "val", data_dir=ExperimentFolder.of(config).data).ground_truth()
        low, high = paired_bootstrap(annotations, {"this": detections}).interval["this"]
    except (ComparisonError, DataError) as error:  # one image has no interval; a file may be gone by now
        return f"{how}{value:.3f}, without an interval ({error})"
    interval = "" if low is None or high is None else f" ({LEVEL:.0%} interval {low:.3f} to {high:.3f})"
    return f"{how}{value:.3f}{interval}, one seed, on {annotations.name}"


def _pixels(config: ExperimentConfig) -> str:
    least, most = config.data.min_pixels, config.data.max_pixels
    if least is None and most is None:
        return "the sizes that the preprocessor's own limits give"
    limits = [f"{words} {value:,}" for words, value in (("at least", least), ("at most", most)) if value is not None]
    return f"{' and '.join(limits)} pixels"
