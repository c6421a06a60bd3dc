"""The card of a merged checkpoint, ``merged/README.md``: what it is, how good, how to use it and to make it again."""

from collections.abc import Mapping

import yaml

from coordexp.config.keys import made_again
from coordexp.config.schema import ExperimentConfig
from coordexp.config.trees import merged
from coordexp.data.sources.source import source_of
from coordexp.files import write_text
from coordexp.metrics import MetricName
from coordexp.runs.folder import ExperimentFolder, RunFolder

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
    losses = "\n".join(
        f"| `{on.term.name}` | {on.weight:g} | {on.term.formula.replace('|', '&#124;')} |"
        for on in weighted_terms(config)
        if on.weight > 0
    )
    verb, again = "train", made_again(config)
    if config.cluster.num_workers > 1:  # the one run of an ablation, on Ray: this process is one worker
        verb = "ablation"
        again = merged(again, {"ablation": {"groups": {}, "seeds": [config.experiment.seed]}})
    training = config.training
    tuning = "all weights" if training.tuning == "full" else f"{training.tuning} of rank {training.lora.rank}"
    offset = ", and a coord-offset adapter" if config.trains_offset else ""
    least, most = config.data.min_pixels, config.data.max_pixels
    limits = " to ".join(f"{value:,}" if value else "the preprocessor's own limit" for value in (least, most))
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
- **Tuning**: {tuning}{offset}
- {_quality(config, metrics)}

| loss term | weight | sum over a batch, before it is divided by its count |
|---|---|---|
{losses}

## Use

```console
coordexp predict --model . PICTURE
```

The instruction of training was `{config.data.prompt}`; images had {limits} pixels.

## Make it again

Save this as `run.yaml` and run `coordexp {verb} --config run.yaml`:

```yaml
{yaml.safe_dump(again, sort_keys=False, allow_unicode=True).strip()}
```
"""
    write_text(RunFolder.of(config).merged / "README.md", text)


def _quality(config: ExperimentConfig, metrics: Mapping[str, float]) -> str:
    """Return the headline AP of the run."""
    reading, ways = config.reading, config.evaluation.decoding
    decoding = "constrained" if "constrained" in ways else ways[0]
    value = metrics.get(str(MetricName(decoding, "AP", reading)))
    said = "not defined, since no object there counts" if value is None else f"{value:.3f}, one seed"
    on = source_of(config.data, "val", data_dir=ExperimentFolder.of(config).data).name
    return f"**COCO AP**, {decoding} decoding, boxes read by {_READINGS[reading]}: {said}, on {on}"
