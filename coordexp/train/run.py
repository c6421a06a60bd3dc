"""One run: train, evaluate, merge. Knows nothing of Ray; resumes from its reporter's checkpoint."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import set_seed

from coordexp.config.schema import ExperimentConfig
from coordexp.data.batches.dataset import DetectionDataset
from coordexp.data.batches.sampler import LengthBucketSampler
from coordexp.errors import DivergedError
from coordexp.model.merge.merge import merge_model
from coordexp.runs import ranks
from coordexp.runs.folder import SCRATCH_PREFIX, RunFolder
from coordexp.runs.reporter import Reporter
from coordexp.runs.stop import RunStoppedError, StopListener, listener_for
from coordexp.train.batch import model_inputs
from coordexp.train.checks.setup_check import SetupCheck
from coordexp.train.checks.term_gradients import TermGradientLog
from coordexp.train.loop.checkpointing import Announce, Session
from coordexp.train.loop.saved_averages import resume_window
from coordexp.train.loop.schedule import Cadence
from coordexp.train.loop.start_messages import start_lines, write_param_groups
from coordexp.train.setup.arguments import training_arguments
from coordexp.train.setup.components import build_components
from coordexp.train.setup.loader import loader_lines, named_death
from coordexp.train.setup.strategy import samples_at_once, strategy_line
from coordexp.train.setup.token_stream import global_batch_size
from coordexp.train.setup.zero import autocast_forward, forget_deepspeed, make_whole, whole_weights
from coordexp.train.trainer import CoordTrainer


def train_run(config: ExperimentConfig, *, reporter: Reporter, announce: Announce) -> None:
    """Run one group and seed from its newest checkpoint, or the beginning, to the merged model.

    Every rank of a process group calls this. Files go to the run's directory; rows and
    checkpoints go through ``reporter``.

    Args:
        config: one run's resolved configuration; the experiment must have been prepared.
        reporter: makes rows and checkpoints durable.
        announce: shows a line of progress.

    Raises:
        CoordExpError: if something in the run's inputs is wrong.
        TrainingError: if the loss stops being finite.
        RunStoppedError: if it was asked to stop; everything up to then is committed.
    """
    started = time.monotonic()
    listener = listener_for(config)
    _stop_if_asked(listener)
    if config.training.num_threads is not None:
        torch.set_num_threads(config.training.num_threads)
    set_seed(config.experiment.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    parts = build_components(config)
    session = Session(config=config, parts=parts, reporter=reporter, announce=announce)
    RunFolder.of(config).path.mkdir(parents=True, exist_ok=True)
    if ranks.rank() == 0:
        for left_over in RunFolder.of(config).scratch():  # of a killed process; the experiment is locked
            shutil.rmtree(left_over, ignore_errors=True)
    ranks.barrier()
    if ranks.rank() == 0:
        write_param_groups(parts, RunFolder.of(config).path)
    # On the run's own disk, whose room was checked before the start.
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=RunFolder.of(config).path) as scratch:
        _train(session, Path(scratch), listener)
    _finish(session, started, listener)


def _stop_if_asked(listener: StopListener) -> None:
    reason = listener.look()
    if reason is not None:
        raise RunStoppedError(reason)


def _train(session: Session, scratch: Path, listener: StopListener) -> None:
    trainer = make_trainer(session, scratch, listener)
    checkpoint = session.reporter.latest_checkpoint()
    if checkpoint is not None:
        session.resume(checkpoint)
        resume_window(trainer.meter, checkpoint)
        session.announce(f"{session.name}  resumes at step {session.first_step}")
    samples = cast(DetectionDataset, trainer.train_dataset)
    batches = loader_lines(session.config, trainer.sampler, num_ranks=ranks.world_size())
    strategy = f"starts: {strategy_line(session.config, num_workers=ranks.world_size())}"
    for line in (strategy, *start_lines(session.parts, samples), *batches):
        session.announce(f"{session.name}  {line}")
    if checkpoint is not None and session.first_step >= session.config.training.max_steps:
        trainer.load_weights(checkpoint)  # Hugging Face's loop would take one more step
        forget_deepspeed()
    else:
        _take_steps(trainer, session, checkpoint)
    make_whole(trainer.engine)
    # Evaluation and merge see the model's own precision, not training's autocast.
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    trainer.accelerator.free_memory()


def _take_steps(trainer: CoordTrainer, session: Session, checkpoint: Path | None) -> None:
    try:
        with named_death():
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except DivergedError:
        session.commit(trainer.state.global_step, None)  # the rows since the last checkpoint say how it came about
        raise


def make_trainer(session: Session, scratch: Path, listener: StopListener | None = None) -> CoordTrainer:
    """Wire the trainer of a run; ``scratch`` takes checkpoints until they are committed."""
    config, parts = session.config, session.parts
    listener = listener or listener_for(config)
    arguments = training_arguments(config, output_dir=scratch)
    dataset = parts.encoding.dataset(parts.train.samples, image_cache_mib=config.data.image_cache_mib)
    if config.data.num_workers:
        dataset.freeze()
    sampler = LengthBucketSampler(
        dataset.lengths,
        batch_size=global_batch_size(config),
        seed=config.experiment.seed,
        buckets=config.data.length_buckets,
        multiple_of=samples_at_once(config, num_workers=ranks.world_size()),
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
        on_step_log=session.on_step_log,
        term_gradient_steps=config.training.log_term_gradients,
    )
    if arguments.deepspeed is not None and config.training.precision == "bfloat16":
        autocast_forward(parts.model, device_type=arguments.device.type)
    trainer.add_callback(SetupCheck(config, lambda: trainer.engine))
    # Before the cadence, which commits the rows of a step.
    trainer.add_callback(TermGradientLog(trainer.term_gradients, session.on_term_gradients))
    trainer.add_callback(
        Cadence(
            session,
            dataset,
            sampler,
            meter=trainer.meter,
            listener=listener,
            whole=lambda: whole_weights(trainer.engine),
        )
    )
    return trainer


def _finish(session: Session, started: float, listener: StopListener) -> None:
    """Evaluate on everything, merge, and commit the last rows; a stop comes before either."""
    config, parts = session.config, session.parts
    step = config.training.max_steps
    parts.model.eval()
    _stop_if_asked(listener)
    session.evaluate_all(step)
    session.commit(step, None)  # a merge that fails does not cost the evaluation
    if ranks.rank() == 0:
        samples = _merge_samples(session)
        merge_model(parts.model, parts.processor, RunFolder.of(config).merged, overwrite=True, samples=samples)
        metrics = {"final/train_seconds": session.train_seconds, "final/steps": float(step)}
        metrics["final/seconds"] = time.monotonic() - started
        session.add_row(step, metrics)
    ranks.barrier()
    session.commit(step, None)


def _merge_samples(session: Session) -> list[dict[str, Tensor]] | None:
    """Return two short validation samples, answers included, as inputs of the plain model; None if there are none."""
    encoding = session.parts.encoding
    dataset = encoding.dataset(session.parts.val.samples)
    shortest = sorted(range(len(dataset)), key=lambda index: (dataset.lengths[index], index))[:2]
    batches = [encoding.collate([dataset[index]]) for index in shortest]
    return [model_inputs(batch, encoding.image_spec, dtype=torch.float32) for batch in batches] or None
