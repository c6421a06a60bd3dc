"""The card of a merged checkpoint, ``merged/README.md``: what it is, how good, how to use it and to make it again."""

from collections.abc import Mapping

import yaml

from coordexp.config.keys import select
from coordexp.config.schema import RunConfig
from coordexp.config.trees import merged
from coordexp.data.sources.source import source_of
from coordexp.files import write_text
from coordexp.metrics import MetricName
from coordexp.runs.folder import ExperimentFolder, RunFolder

_READINGS = {"expected": "the mean of each distribution", "argmax": "the most likely bin"}


def write_model_card(config: RunConfig, *, metrics: Mapping[str, float]) -> None:
    """Write the card of a finished run, with the metrics of its final evaluation, into its merged checkpoint."""
    experiment, reading, ways = config.experiment, config.reading, config.evaluation.decoding
    decoding = "constrained" if "constrained" in ways else ways[0]
    value = metrics.get(str(MetricName(decoding, "AP", reading)))
    ap = "not defined, since no object there counts" if value is None else f"{value:.3f}, one seed"
    on = source_of(config.data, "val", data_dir=ExperimentFolder.of(config).data).name
    verb, again = "train", select(config, lambda key: key.role not in ("machine", "plan"))
    if config.cluster.num_workers > 1:  # the one run of an ablation, on Ray: this process is one worker
        verb = "ablation"
        again = merged(again, {"ablation": {"groups": {}, "seeds": [experiment.seed]}})
    text = f"""---
library_name: transformers
pipeline_tag: image-text-to-text
tags: [object-detection, coordexp]
---
# {experiment.name}, group {experiment.group}, seed {experiment.seed}

A vision-language model that detects objects by writing them: a description and a box each. It was fine-tuned from
`{config.model.path}` by coordexp to compare losses on coordinates. It knows what its training data holds, and nothing
more is claimed of it.

**COCO AP**, {decoding} decoding, boxes read by {_READINGS[reading]}: {ap}, on {on}

The instruction of training was `{config.data.prompt}`. To use it: `coordexp predict --model . PICTURE`

To make it again, save this as `run.yaml` and run `coordexp {verb} --config run.yaml`:

```yaml
{yaml.safe_dump(again, sort_keys=False, allow_unicode=True).strip()}
```
"""
    write_text(RunFolder.of(config).merged / "README.md", text)
