"""One run: train, evaluate, merge. Knows nothing of Ray; resumes from its reporter's checkpoint."""

import tempfile
import time
from pathlib import Path

import torch
from transformers import set_seed

from coordexp.config.schema import ExperimentConfig
from coordexp.data.sampler import LengthBucketSampler
from coordexp.model.merge import merge_model
from coordexp.train import ranks
from coordexp.train.arguments import training_arguments
from coordexp.train.components import build_components
from coordexp.train.paths import run_dir
from coordexp.train.reporter import Reporter
from coordexp.train.session import Announce, Cadence, Session
from coordexp.train.start import start_lines, write_param_groups
from coordexp.train.term_gradients import TermGradientLog
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
    """
    started = time.monotonic()
    if config.training.num_threads is not None:
        torch.set_num_threads(config.training.num_threads)
    set_seed(config.experiment.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    parts = build_components(config)
    session = Session(config=config, parts=parts, reporter=reporter, announce=announce)
    run_dir(config).mkdir(parents=True, exist_ok=True)
    if ranks.rank() == 0:
        write_param_groups(parts, run_dir(config))
    # On the run's own disk, whose room was checked before the start.
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=run_dir(config)) as scratch:
        _train(session, Path(scratch))
    _finish(session, started)


def _train(session: Session, scratch: Path) -> None:
    trainer = make_trainer(session, scratch)
    checkpoint = session.reporter.latest_checkpoint()
    if checkpoint is None:
        for line in start_lines(session.parts):
            session.announce(f"{session.name}  {line}")
    else:
        session.resume(checkpoint)
        session.announce(f"{session.name}  resumes at step {session.first_step}")
    if checkpoint is not None and session.first_step >= session.config.training.max_steps:
        trainer.load_weights(checkpoint)  # Hugging Face's loop would take one more step
        return
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    # Evaluation and merge see the model's own precision, not training's autocast.
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    trainer.accelerator.free_memory()


def make_trainer(session: Session, scratch: Path) -> CoordTrainer:
    """Wire the trainer of a run; ``scratch`` takes checkpoints until they are committed."""
    config, parts = session.config, session.parts
    arguments = training_arguments(config, output_dir=scratch)
    dataset = parts.encoding.dataset(parts.train.samples, image_cache_mib=config.data.image_cache_mib)
    per_step = config.training.per_device_batch_size * config.training.gradient_accumulation_steps
    sampler = LengthBucketSampler(
        dataset.lengths,
        batch_size=per_step * ranks.world_size(),
        seed=config.experiment.seed,
        buckets=config.data.length_buckets,
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
    # Before the cadence, which commits the rows of a step.
    trainer.add_callback(TermGradientLog(trainer.term_gradients, session.on_term_gradients))
    trainer.add_callback(Cadence(session, dataset, sampler))
    return trainer


def _finish(session: Session, started: float) -> None:
    """Evaluate on everything, merge, and commit the last rows."""
    config, parts = session.config, session.parts
    step = config.training.max_steps
    parts.model.eval()
    session.evaluate_all(step)
    session.commit(step, None)  # a merge that fails does not cost the evaluation
    if ranks.rank() == 0:
        merge_model(parts.model, parts.processor, run_dir(config) / "merged", overwrite=True)
        metrics = {"final/train_seconds": session.train_seconds, "final/steps": float(step)}
        metrics["final/seconds"] = time.monotonic() - started
        session.add_row(step, metrics)
    ranks.barrier()
    session.commit(step, None)
