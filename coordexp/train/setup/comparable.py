"""Whether a run, seen from inside its own worker, may stand beside the others of its experiment.

The command that starts runs has compared what it could see: keys, code, data, the base. Between that and a run's first
step lie hours, other machines and their environments. So each worker reads all of it again, and adds what only it can
know (:mod:`coordexp.train.setup.reading`); what differs ends the run before it takes a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from accelerate import Accelerator

from coordexp.config.identity.code import bytes_of_package, code_of_run
from coordexp.config.identity.differences import WORKER, KeyDifference, diff, find_differences, outside_factor
from coordexp.config.identity.fingerprint import PACKAGE_BYTES, Fingerprint, read_fingerprint
from coordexp.config.identity.libraries import changed_since_installed
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ComparisonError, CoordExpError
from coordexp.files import JsonValue, write_text
from coordexp.runs import ranks
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.status import has_taken_step, read_status
from coordexp.train.setup.base import base_hashes
from coordexp.train.setup.components import Components
from coordexp.train.setup.prepare import data_hash, settings_hashes
from coordexp.train.setup.reading import read_machine, read_worker

_NAMED = 4
_LIBRARY = f"{WORKER}libraries."


def confirm_comparable(config: ExperimentConfig, parts: Components, accelerator: Accelerator) -> None:
    """Read again what decides this run's numbers, compare it, and add what the worker found to ``fingerprint.json``.

    Every rank calls it, after its process was set up and before it trains. A run that was started by itself, without
    a fingerprint, is compared with nothing. With ``ablation.allow_differences`` all is recorded and nothing refused.

    Raises:
        ComparisonError: if files changed since the command looked at them, the ranks differ from each other, or this
            worker differs from those of the experiment's other runs outside ``ablation.factor``.
        CoordExpError: if what is read again is damaged by now.
        OSError: if it cannot be read; every rank ends then, the others with a ComparisonError.
    """
    readings = ranks.gather_to_first([read_worker(config, parts, accelerator)])
    refusal: Exception | None = None
    if ranks.rank() == 0 and RunFolder.of(config).fingerprint.is_file():
        try:
            _confirm(config, [reading for (reading,) in readings])
        except (CoordExpError, OSError) as error:  # the other ranks wait for what becomes of this
            refusal = error
    (sentence,) = ranks.from_first(["" if refusal is None else str(refusal)])
    if refusal is not None:
        raise refusal
    if sentence:
        raise ComparisonError(sentence)


def _confirm(config: ExperimentConfig, readings: Sequence[Mapping[str, JsonValue]]) -> None:
    folder, allowed = RunFolder.of(config), config.ablation.allow_differences
    stored = read_fingerprint(folder.fingerprint)
    if not allowed:
        _check_unchanged(stored, _read_again(config, stored), run=folder.name)
        for rank, reading in enumerate(readings[1:], start=1):
            _check_worker({"rank 0": replace(stored, worker=readings[0])}, f"rank {rank}", stored, reading, config)
    current = replace(stored, worker=readings[0], machine=read_machine())
    if not allowed:
        _check_worker(_others(config, stored), folder.name, stored, readings[0], config)
    write_text(folder.fingerprint, current.to_json() + "\n")
    try:
        # Once more: a run that began at the same time may have looked before this one had written.
        if not allowed:
            _check_worker(_others(config, stored), folder.name, stored, readings[0], config)
    except ComparisonError:
        write_text(folder.fingerprint, stored.to_json() + "\n")
        raise


def _read_again(config: ExperimentConfig, stored: Fingerprint) -> Fingerprint:
    """Return the stored fingerprint with everything in it that lies in files as it is now."""
    experiment = ExperimentFolder.of(config)
    base = base_hashes(experiment.base(config), known=experiment.hashes)
    same_code = bytes_of_package() == stored.source.get(PACKAGE_BYTES)
    return replace(
        stored,
        data=data_hash(config),
        weights=base.weights,
        files={**base.files, **settings_hashes(config)},
        code=stored.code if same_code else code_of_run(tuple(config.objective.extra)),
    )


def _check_unchanged(stored: Fingerprint, now: Fingerprint, *, run: str) -> None:
    changed = list(outside_factor(diff(stored, now), ()))  # a metric that was added since changes no other number
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        raise ComparisonError(
            f"{run}: what it reads has changed since the command looked at it, so that it would not be comparable: "
            f"{', '.join(changed[:_NAMED])}{more}; put that back, or choose another experiment.name, or --fresh"
        )


def _others(config: ExperimentConfig, stored: Fingerprint) -> dict[str, Fingerprint]:
    """Return the fingerprints that workers have completed: of the other runs, and of this one before it went on.

    A run that ended before its first step has no numbers to stand beside. One that is running may have got no further
    yet, and counts: runs that begin at one moment must see each other.
    """
    own = RunFolder.of(config)
    others = [run for run in ExperimentFolder.of(config).begun_runs() if run.name != own.name and _counts(run)]
    found = {run.name: read_fingerprint(run.fingerprint) for run in others if run.fingerprint.is_file()}
    before = {f"{own.name} (before)": stored} if has_taken_step(own.path) else {}
    return {name: item for name, item in (before | found).items() if item.worker}


def _counts(run: RunFolder) -> bool:
    status = read_status(run.path)
    return (status is not None and status.state == "running") or has_taken_step(run.path)


def _check_worker(
    others: Mapping[str, Fingerprint],
    name: str,
    stored: Fingerprint,
    reading: Mapping[str, JsonValue],
    config: ExperimentConfig,
) -> None:
    """Compare what a worker found with what others have found; the rest was compared by the command."""
    everything = {**others, name: replace(stored, worker=reading)}
    found = [
        item
        for item in find_differences(everything, config.ablation.factor)
        if item.other_run == name and item.key.startswith(WORKER)
    ]
    if not found:
        return
    shown = "; ".join(
        f"{item.key.removeprefix(WORKER)} is {item.other_shown} here and {item.shown} there" for item in found[:_NAMED]
    )
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise ComparisonError(
        f"{name} would not be comparable with {found[0].run}: {shown}{more}{_hint(found)}; make it alike and give the "
        "same command again, or ablation.allow_differences: true"
    )


def _hint(found: Sequence[KeyDifference]) -> str:
    """Return what helps, for what has a known cure."""
    keys = [item.key for item in found]
    hints: list[str] = []
    if f"{WORKER}threads" in keys:
        hints.append("training.num_threads sets the threads")
    for key in keys:
        if key.startswith(_LIBRARY) and (files := changed_since_installed(key.removeprefix(_LIBRARY))):
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            hints.append(f"{files[0]}{more} {'are' if more else 'is'} not as installed")
    return "".join(f" ({hint})" for hint in hints)
