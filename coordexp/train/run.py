"""One run, top-down: build its parts, train, evaluate, merge. Knows nothing of Ray; resumes from its reporter."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import set_seed

from coordexp.config.schema import ExperimentConfig
from coordexp.data.dataset import DetectionDataset
from coordexp.data.sampler import LengthBucketSampler
from coordexp.errors import CoordExpError, DivergedError
from coordexp.files import shorten_temporary_folder, write_json
from coordexp.model.merging.merge import merge_model
from coordexp.model.param_groups import describe
from coordexp.runs import ranks
from coordexp.runs.folder import SCRATCH_PREFIX, CheckpointFolder, ExperimentFolder, RunFolder
from coordexp.runs.reporter import Reporter, has_final_rows
from coordexp.runs.status import Finish, note_traceback, one_sentence
from coordexp.runs.stop import RunStoppedError, StopListener, listener_for
from coordexp.train.forward import mean_units, model_inputs
from coordexp.train.loop.diagnostics import TermGradientLog
from coordexp.train.loop.evaluator import Evaluator
from coordexp.train.loop.finite import LookBeforeRecords
from coordexp.train.loop.messages import start_lines
from coordexp.train.loop.run_log import RunLog
from coordexp.train.loop.schedule import EpochSetter, Schedule
from coordexp.train.loop.throughput import utilisation_of
from coordexp.train.setup.arguments import SetupCheck, choose_algorithms, steps_on_device, training_arguments
from coordexp.train.setup.comparable import confirm_comparable
from coordexp.train.setup.components import Components, build_components
from coordexp.train.setup.loader import explained_loader_death
from coordexp.train.setup.strategy import samples_at_once
from coordexp.train.setup.zero import autocast_forward, forget_deepspeed
from coordexp.train.trainer import CoordTrainer

_MERGE_SAMPLES = 4


@dataclass(frozen=True)
class Run:
    """What a run works with from its first step to its last row."""

    config: ExperimentConfig
    parts: Components
    log: RunLog
    evaluator: Evaluator
    listener: StopListener

    @staticmethod
    def of(
        config: ExperimentConfig, parts: Components, *, reporter: Reporter, print_line: Callable[[str], None]
    ) -> "Run":
        """Put together what logs, evaluates and stops a run of these parts."""
        half_precision = config.training.precision == "bfloat16"
        utilisation = utilisation_of(parts.model, half_precision=half_precision, num_devices=ranks.world_size())
        log = RunLog(
            config, criterion=parts.criterion, utilisation=utilisation, reporter=reporter, print_line=print_line
        )
        return Run(config, parts, log, Evaluator(config, parts, on_answers=log.on_answers), listener_for(config))


def train_run(
    config: ExperimentConfig, *, reporter: Reporter, print_line: Callable[[str], None], merges: bool = True
) -> Finish:
    """Run one group and seed from its newest checkpoint, or the beginning, to the merged model.

    Every rank of a process group calls this. Files go to the run's directory; rows and
    checkpoints go through ``reporter``.

    Args:
        config: one run's resolved configuration; the experiment must have been prepared.
        reporter: makes rows and checkpoints durable.
        print_line: prints a line of progress.
        merges: make the merged model.

    Returns:
        What to keep with the finished run. A merge that fails, or loses much, is a warning there: the run has its AP.

    Raises:
        CoordExpError: if something in the run's inputs is wrong, or the run would not be comparable with the others.
        TrainingError: if the loss stops being finite.
        RunStoppedError: if it was asked to stop; everything up to then is committed.
    """
    started = time.monotonic()
    _stop_if_asked(listener_for(config))
    if (ignored := set_up_process(config)) is not None and ranks.rank() == 0:
        print_line(ignored)
    parts = build_components(config)
    run = Run.of(config.with_steps(len(parts.train.samples)), parts, reporter=reporter, print_line=print_line)
    folder = RunFolder.of(config)
    folder.path.mkdir(parents=True, exist_ok=True)
    if ranks.rank() == 0:
        for left_over in folder.scratch():  # of a killed process; the experiment is locked
            shutil.rmtree(left_over, ignore_errors=True)
    ranks.barrier()
    if ranks.rank() == 0:
        write_json(folder.param_groups, [asdict(row) for row in describe(run.parts.param_groups)], indent=2)
    with _scratch(folder) as scratch:
        _train(run, scratch)
    if not ranks.from_first([has_final_rows(folder.path)])[0]:
        _evaluate(run)
    finish = _merge(run) if merges and ranks.rank() == 0 else Finish()
    step = run.config.training.num_steps
    run.log.add_row(step, {"final/seconds": time.monotonic() - started})
    ranks.barrier()
    run.log.commit(step)
    return finish


def set_up_process(config: ExperimentConfig) -> str | None:
    """Set threads, seeds and algorithms of this process, before anything is built.

    Returns:
        What its environment asked for and does not get, see :func:`ranks.ignore_launchers`.
    """
    ignored = ranks.ignore_launchers()
    shorten_temporary_folder()
    # On a CPU their number decides last digits, and must be the same whatever started the process.
    if config.training.num_threads is not None or not torch.cuda.is_available():
        torch.set_num_threads(config.threads_of_worker)
    set_seed(config.experiment.seed)
    choose_algorithms(deterministic=config.is_deterministic)
    return ignored


@contextlib.contextmanager
def _scratch(folder: RunFolder) -> Generator[Path]:
    """Yield a folder, the same on all ranks, for checkpoints that are not whole yet.

    It is on the run's own disk, whose room was checked before the start.
    """
    made = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=folder.path) if ranks.rank() == 0 else ""
    (scratch,) = ranks.from_first([made])
    try:
        yield Path(scratch)
    finally:
        if made:
            shutil.rmtree(scratch, ignore_errors=True)


def _stop_if_asked(listener: StopListener) -> None:
    reason = listener.look()
    if reason is not None:
        raise RunStoppedError(reason)


def _train(run: Run, scratch: Path) -> None:
    """Take the optimizer steps that are left; afterwards the model is plain on every rank."""
    trainer = make_trainer(run, scratch)
    confirm_comparable(run.config, run.parts, trainer.accelerator)
    checkpoint = run.log.reporter.latest_checkpoint()
    first_step = 0
    if checkpoint is not None:
        first_step = CheckpointFolder(checkpoint).step
        run.log.resume(checkpoint)
        trainer.averages.resume(checkpoint)
    dataset = cast(DetectionDataset, trainer.train_dataset)
    run.log.start(start_lines(run.config, run.parts, dataset, trainer.sampler), step=first_step)
    if checkpoint is not None and first_step >= run.config.training.num_steps:
        trainer.load_weights(checkpoint)  # Hugging Face's loop would take one more step
        forget_deepspeed()
    else:
        try:
            with explained_loader_death():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except DivergedError:
            run.log.commit(trainer.state.global_step)  # the rows since the last checkpoint say how it came about
            raise
        finally:
            trainer.end_loader()
    # Evaluation and merge see the model's own precision, not training's autocast.
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    trainer.accelerator.free_memory()


def make_trainer(run: Run, scratch: Path) -> CoordTrainer:
    """Wire the trainer of a run; ``scratch`` takes checkpoints until they are committed."""
    config, parts = run.config, run.parts
    arguments = training_arguments(config, output_dir=scratch)
    dataset = parts.encoding.dataset(parts.train.samples, image_cache_mib=config.data.image_cache_mib)
    sampler = LengthBucketSampler(
        dataset.lengths,
        batch_size=config.global_batch_size,
        seed=config.experiment.seed,
        buckets=config.data.length_buckets,
        bucket_size=config.data.bucket_size,
        multiple_of=samples_at_once(config),
    )
    trainer = CoordTrainer(
        parts.model,
        arguments,
        criterion=parts.criterion,
        forward_terms=parts.forward_terms,
        train_dataset=dataset,
        collate=parts.encoding.collate,
        sampler=sampler,
        param_groups=parts.param_groups,
        on_step_log=run.log.on_step_log,
        on_first_step=run.log.start_clock,
        mean_units_U=mean_units(dataset) if config.training.normalise_by == "data" else None,
        term_gradient_steps=config.training.log_term_gradients,
        fused=steps_on_device(arguments),
    )
    if config.training.precision == "bfloat16" and arguments.deepspeed is not None:
        autocast_forward(parts.model, device_type=arguments.device.type)
    trainer.add_callback(SetupCheck(config, lambda: trainer.engine))
    trainer.add_callback(EpochSetter(dataset, sampler))
    # Before the schedule, which commits the rows of a step.
    trainer.add_callback(TermGradientLog(trainer.term_gradients, run.log.on_term_gradients))
    trainer.add_callback(
        Schedule(
            config,
            log=run.log,
            evaluator=run.evaluator,
            averages=trainer.averages,
            listener=run.listener,
        )
    )
    trainer.add_callback(LookBeforeRecords(trainer.finite))  # behind the schedule, which asks for records
    return trainer


def _evaluate(run: Run) -> None:
    """Evaluate on everything and commit it for good: what comes after it cannot cost it."""
    config, parts, log = run.config, run.parts, run.log
    step = config.training.num_steps
    parts.model.eval()
    _stop_if_asked(run.listener)
    metrics = run.evaluator.on_all_images()
    log.add_evaluation(step, metrics, num_images=len(parts.val.samples), is_final=True)
    if ranks.rank() == 0:
        for sentence in run.evaluator.remarks(metrics):
            log.note(sentence)
    if ranks.rank() == 0 and config.evaluation.every_steps is not None:
        log.add_row(step, run.evaluator.subset_of_final())
    log.add_row(step, {"final/train_seconds": log.train_seconds, "final/steps": float(step)})
    log.commit(step, is_final=True)


def _merge(run: Run) -> Finish:
    """Merge the adapter into the base, which ends no run: everything measured is committed by now."""
    config, parts, log = run.config, run.parts, run.log
    log.note("merges its adapter into the base")
    folder = RunFolder.of(config)
    try:
        merged = merge_model(
            parts.model,
            parts.processor,
            folder.merged,
            base=ExperimentFolder.of(config).base(config),
            overwrite=True,
            samples=_merge_samples(parts),
            trained_with=parts.encoding.trained_with,
            gives_up=True,
        )
    except (CoordExpError, OSError, RuntimeError) as error:  # of which torch's lack of memory is one
        note_traceback(folder.path)
        return Finish(
            f"its adapter was not merged: {one_sentence(error)}; the same command tries that again", is_merged=False
        )
    lost = {"final/merge_lost_logits": merged.lost_at_logits, "final/merge_lost_weights": merged.most_lost}
    log.add_row(config.training.num_steps, {name: value for name, value in lost.items() if value is not None})
    log.note(f"merged in {merged.dtype}: {merged.sentence}")
    return Finish(merged.warning)


def _merge_samples(parts: Components) -> list[dict[str, Tensor]] | None:
    """Return a few short validation samples, answers included, as inputs of the plain model; None if there are none."""
    encoding = parts.encoding
    dataset = encoding.dataset(parts.val.samples)
    shortest = sorted(range(len(dataset)), key=lambda index: (dataset.lengths[index], index))[:_MERGE_SAMPLES]
    batches = [encoding.collate([dataset[index]]) for index in shortest]
    return [model_inputs(batch, encoding.image_spec, dtype=torch.float32) for batch in batches] or None
