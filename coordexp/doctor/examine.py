"""All checks of ``doctor``, one after the other; a failure of one never hides another."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from coordexp.cluster.capacity import local_slots
from coordexp.config import load_config
from coordexp.config.identity.parts import without_loss
from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.grammar.sequence import target_length, text_encoder
from coordexp.data.splits.splits import Split
from coordexp.doctor.checkpoint import Base, examine_checkpoint
from coordexp.doctor.files import DataFacts, check_categories, examine_descriptions, examine_split, merged
from coordexp.doctor.finding import Finding, Findings
from coordexp.doctor.machine import Machine, examine_disk, examine_experiment, examine_loading
from coordexp.doctor.memory import EVALUATION, Estimate, Shape, estimate
from coordexp.doctor.services import examine_cluster, examine_tracking
from coordexp.doctor.sizes import Sizes, check_optimizer, expanded_config, meta_run_model
from coordexp.errors import ConfigError, DataError
from coordexp.model.checkpoint.empty_model import Dimensions
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.train.setup.objective import build_criterion

_SPLITS: tuple[Split, ...] = ("train", "val")
_DESCRIPTION_TOKENS = 4  # of a category's name, where no tokenizer or file says
_ORDINARY_OBJECTS = 10  # COCO's images have seven on average


@dataclass(frozen=True)
class Examination:
    """What was found.

    Attributes:
        findings: in the order of the checks.
        memory: of the longest batch on one device; None where the model is unknown.
        sequence: the longest sequence, which the estimate is for.
    """

    findings: tuple[Finding, ...]
    memory: Estimate | None = None
    sequence: Shape | None = None

    @property
    def would_start(self) -> bool:
        """Whether nothing was found that stops a run."""
        return all(finding.verdict != "failure" for finding in self.findings)


def examine(path: Path, overrides: list[str]) -> Examination:
    """Examine the experiment of a configuration file; writes nothing and loads no weights.

    Args:
        path: YAML of the experiment.
        overrides: ``KEY=VALUE``.
    """
    findings = Findings()
    run = findings.attempt("configuration", lambda: load_config(path, overrides))
    plans = None if run is None else findings.attempt("configuration", lambda: _planned(run))
    if run is None or plans is None:
        return Examination(tuple(findings.all))
    runs = "run" if len(plans) == 1 else "runs"
    findings.ok("configuration", f"{run.experiment.name}: {len(plans)} {runs}, {', '.join(_names(plans))}")
    return _Examiner(run, plans, findings).examine()


class _Examiner:
    """Runs the checks of a configuration that is valid."""

    def __init__(self, run: ExperimentConfig, plans: list[RunPlan], findings: Findings) -> None:
        self._run, self._plans, self._findings = run, plans, findings

    def examine(self) -> Examination:
        run, findings = self._run, self._findings
        machine = Machine.here()
        findings.ok("machine", machine.describe())
        cluster, tracking = Findings(), Findings()
        # Both may wait for an answer: they do it while files are read.
        with ThreadPoolExecutor(2) as others:
            waiting = (
                others.submit(examine_cluster, run, len(machine.gpu_names), cluster),
                others.submit(examine_tracking, run, tracking),
            )
            examine_experiment(run, findings)
            examined = self._examine_variants(machine)
            for future in waiting:
                future.result()
        # Groups that differ in one thing share what was found of the others.
        every = dict.fromkeys([*findings.all, *cluster.all, *tracking.all])
        return Examination(tuple(every), *examined)

    def _examine_variants(self, machine: Machine) -> tuple[Estimate | None, Shape | None]:
        """Check data and base of every distinct pair; the estimate is that of the largest."""
        largest: tuple[Estimate | None, Shape | None] = (None, None)
        seen: set[str] = set()
        for plan in self._plans:
            parts = without_loss(plan.config)
            if parts in seen:
                continue
            seen.add(parts)
            found = self._examine_run(plan.config, machine)
            if found[0] is not None and (largest[0] is None or found[0].num_bytes > largest[0].num_bytes):
                largest = found
        return largest

    def _examine_run(self, run: ExperimentConfig, machine: Machine) -> tuple[Estimate | None, Shape | None]:
        findings = self._findings
        facts = {split: examine_split(run, split, findings) for split in _SPLITS}
        val = facts["val"]
        if val is not None and val.categories:
            findings.attempt("categories", lambda: check_categories(run, val))
        base = findings.attempt("checkpoint", lambda: examine_checkpoint(run, findings))
        if base is not None and base.text is not None:
            encode = text_encoder(base.text.tokenizer)
            for split in _SPLITS:
                found = facts[split]
                if found is not None:
                    examine_descriptions(split, found, encode, findings)
        if base is None:
            examine_disk(self._plans, None, findings)
            findings.warn("memory", "not estimated: the model's shape is unknown")
            return None, None
        known = base
        examine_disk(self._plans, findings.attempt("disk", lambda: known.weights_bytes), findings)
        result = findings.attempt("memory", lambda: self._estimate(run, known, merged(facts["train"], val), machine))
        return (None, None) if result is None else result

    def _estimate(
        self, run: ExperimentConfig, base: Base, facts: DataFacts | None, machine: Machine
    ) -> tuple[Estimate, Shape]:
        findings = self._findings
        model = meta_run_model(
            base.config, run, dtype=base.dtype, coord_ids=base.coord_ids, num_extra_ids=base.num_extra_ids
        )
        sizes = Sizes.of(model)
        groups = findings.attempt("optimizer", lambda: check_optimizer(model, run))
        if groups is not None:
            findings.ok("optimizer", f"{sizes.num_trained:,} of {sizes.num:,} parameters train, in {groups} groups")
        longest, ordinary = (_sequence(run, base, facts, ordinary=flag) for flag in (False, True))
        if longest.prompt + 1 > run.data.max_length:
            raise DataError(
                f"prompt and image take up to {longest.prompt} tokens, data.max_length is {run.data.max_length}; "
                "raise it, or lower data.max_pixels"
            )
        dimensions = Dimensions.of(expanded_config(base.config, num_tokens=base.num_tokens))
        on_gpu = run.cluster.gpus_per_worker > 0 or bool(machine.gpu_bytes)
        needed = estimate(dimensions, run, sizes, longest, on_gpu=on_gpu)
        usual = estimate(dimensions, run, sizes, ordinary, on_gpu=on_gpu)
        _judge_memory(run, needed, usual, machine, on_gpu=on_gpu, findings=findings)
        if machine.gpu_bytes:
            examine_loading(run, sizes.num_bytes, machine, findings)
        return needed, longest


def _planned(run: ExperimentConfig) -> list[RunPlan]:
    plans = plan_runs(run)
    if len({plan.config.data.shapes.model_dump_json() for plan in plans}) > 1:
        raise ConfigError(
            "groups differ in data.shapes, but an experiment holds one generated data set; use two experiments"
        )
    for plan in plans:
        build_criterion(plan.config)
    return plans


def _names(plans: list[RunPlan]) -> list[str]:
    names = [plan.name for plan in plans]
    return names if len(names) <= 6 else [*names[:5], f"and {len(names) - 5} more"]


def _sequence(run: ExperimentConfig, base: Base, facts: DataFacts | None, *, ordinary: bool) -> Shape:
    """Return the longest sequence that can occur, or one of a full-size image with ten objects."""
    image = base.num_image_tokens(facts.sizes_px if facts else frozenset(), run.data.max_pixels)
    prompt = base.num_prompt_tokens + image
    most = run.data.max_objects if facts is None else facts.max_objects
    objects = min(run.data.max_objects, most, _ORDINARY_OBJECTS if ordinary else most)
    target = target_length([_description_tokens(base, facts)] * objects, run.data.structure)
    return Shape(prompt, min(run.data.max_length, prompt + target), image * Dimensions.of(base.config).merge_size ** 2)


def _description_tokens(base: Base, facts: DataFacts | None) -> int:
    if base.text is None or facts is None or not facts.categories:
        return _DESCRIPTION_TOKENS
    encode = base.text.tokenizer.encode
    return max(len(encode(name, add_special_tokens=False)) for name in facts.categories)


def _judge_memory(
    run: ExperimentConfig, needed: Estimate, usual: Estimate, machine: Machine, *, on_gpu: bool, findings: Findings
) -> None:
    share = min(1.0, run.cluster.gpus_per_worker) or 1.0
    at_once = 1 if on_gpu else local_slots(run) * run.cluster.num_workers
    there = share * min(machine.gpu_bytes, default=0) if on_gpu else machine.ram_bytes
    times = f" for each of {at_once} processes" if at_once > 1 else ""
    device = "a GPU" if on_gpu else "memory"
    sentence = (
        f"the longest batch needs about {_gib(needed.num_bytes)} of {device}{times}, "
        f"an ordinary one {_gib(usual.num_bytes)}"
    )
    if not there:
        findings.ok("memory", f"{sentence}; there is no GPU here to compare with")
    elif at_once * needed.num_bytes <= there:
        findings.ok("memory", f"{sentence}; {_gib(there)} are there")
    elif at_once * usual.num_bytes <= there:
        findings.warn(
            "memory", f"{sentence}; {_gib(there)} are there, so the longest may not fit; {_advice(run, needed)}"
        )
    else:
        findings.fail("memory", f"{sentence}, but only {_gib(there)} are there; {_advice(run, needed)}")


def _advice(run: ExperimentConfig, needed: Estimate) -> str:
    """Say what lowers the larger of the two peaks."""
    if max(needed.phases, key=lambda phase: phase.num_bytes).name == EVALUATION:
        return "lower evaluation.batch_size, evaluation.max_new_tokens or data.max_pixels"
    if not run.training.gradient_checkpointing:
        return "set training.gradient_checkpointing: true, or lower training.per_device_batch_size or data.max_pixels"
    return "lower training.per_device_batch_size or data.max_pixels"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
