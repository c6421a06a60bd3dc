"""One run, top-down: build its parts, train, evaluate, merge. Knows nothing of Ray; resumes from its reporter."""

import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import set_seed
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.utils.logging import disable_progress_bar

from coordexp.config.schema import RunConfig
from coordexp.data.box_limits.count import BoxLimits
from coordexp.errors import CoordExpError, DivergedError
from coordexp.files import write_json
from coordexp.model.merging.merge import merge_model
from coordexp.model.param_groups import describe
from coordexp.runs import ranks
from coordexp.runs.folder import ExperimentFolder, RunFolder, step_of
from coordexp.runs.live import RunEvent, append_event
from coordexp.runs.reporter import LocalReporter, final_metrics
from coordexp.runs.status import Ended, note_traceback, one_sentence, read_status
from coordexp.runs.stop import RunStoppedError, agreed_stop_reason
from coordexp.temporary import shorten_temporary_folder
from coordexp.train.facts import training_facts
from coordexp.train.forward import model_inputs
from coordexp.train.loop.evaluator import Evaluator
from coordexp.train.loop.messages import start_lines
from coordexp.train.loop.run_log import RunLog
from coordexp.train.loop.throughput import flop_counter
from coordexp.train.schedule import Schedule
from coordexp.train.setup.arguments import choose_algorithms
from coordexp.train.setup.comparable import confirm_comparable
from coordexp.train.setup.components import Components, build_components
from coordexp.train.setup.loader import explained_loader_death
from coordexp.train.setup.zero import autocast_forward
from coordexp.train.trainer import CoordTrainer

_MERGE_SAMPLES = 4


@dataclass(frozen=True)
class Run:
    """What a run works with from its first step to its last row."""

    config: RunConfig
    parts: Components
    log: RunLog
    evaluator: Evaluator

    @staticmethod
    def of(
        config: RunConfig, parts: Components, *, reporter: LocalReporter, print_line: Callable[[str], None]
    ) -> "Run":
        half_precision = config.training.precision == "bfloat16"
        flops = flop_counter(parts.model, half_precision=half_precision, num_devices=ranks.world_size())
        log = RunLog(config, criterion=parts.criterion, flops=flops, reporter=reporter, print_line=print_line)
        return Run(config, parts, log, Evaluator(config, parts, on_progress=log.show_answers))

    def stop_if_asked(self) -> None:
        """End the run if that was requested; every rank calls it at the same point."""
        reason = agreed_stop_reason(RunFolder.of(self.config).path)
        if reason is not None:
            raise RunStoppedError(reason)


def train_run(
    config: RunConfig, *, reporter: LocalReporter, print_line: Callable[[str], None], merges: bool = True
) -> Ended:
    """Run one group and seed from its newest checkpoint, or the beginning, to the merged model.

    Every rank of a process group calls this, for an experiment that was prepared. A merge that fails, or loses much, is
    a warning in what is returned: the run has its AP.

    Raises:
        CoordExpError: if something in the run's inputs is wrong, or it would not be comparable with the others.
        RunStoppedError: if it was asked to stop; everything up to then is committed.
    """
    started = time.monotonic()
    is_first = ranks.rank() == 0
    ignored = set_up_process(config)
    if ignored is not None and is_first:
        print_line(ignored)
        append_event(RunFolder.of(config), RunEvent("warning", time.time(), ignored))
    parts = build_components(config)
    run = Run.of(config.with_steps(len(parts.train.samples)), parts, reporter=reporter, print_line=print_line)
    run.stop_if_asked()
    folder, step = RunFolder.of(config), run.config.training.num_steps
    folder.path.mkdir(parents=True, exist_ok=True)
    if is_first:
        shutil.rmtree(folder.scratch, ignore_errors=True)  # of a killed process
        write_json(folder.param_groups, [asdict(row) for row in describe(parts.param_groups)], indent=2)
    ranks.barrier()
    try:
        limits = _train(run, folder.scratch)
    finally:
        if is_first:
            shutil.rmtree(folder.scratch, ignore_errors=True)
    reported = ranks.from_first([final_metrics(folder.path)])[0]
    if "final/steps" not in reported:
        _evaluate(run, step, limits)
    ended, lost = _merge(run) if merges and is_first else (Ended("finished"), {})
    # MLflow counts the rows that it has: what is made again has to stand in the same place. So the row that every try
    # makes comes first, and that of a merge, which may fail at one try and not at the next, behind it.
    if "final/seconds" not in reported:  # a run that finished without its merge has been timed
        run.log.add_row(step, {"final/seconds": _seconds_so_far(folder, since=started)})
    if lost:
        run.log.add_row(step, lost)
    ranks.barrier()
    run.log.commit(step, is_final=not ended.is_merged)
    return ended


def _seconds_so_far(folder: RunFolder, *, since: float) -> float:
    """Return the wall time of a whole run, with the tries before this one; this process began it at ``since``."""
    status = read_status(folder.path)
    # Only an executor keeps a status; whoever calls `train_run` alone has this process's time.
    return time.monotonic() - since if status.since is None else status.seconds_until(time.time())


def set_up_process(config: RunConfig) -> str | None:
    """Set threads, seeds, algorithms and output of this process; return what :func:`ranks.ignore_launchers` says."""
    ignored = ranks.ignore_launchers()
    shorten_temporary_folder()  # loaders exchange files by sockets there
    disable_progress_bar()  # transformers draws one for each checkpoint that it saves, between a run's own lines
    # On a CPU their number decides last digits, and must be the same whatever started the process.
    if config.training.num_threads is not None or not torch.cuda.is_available():
        torch.set_num_threads(config.threads_of_worker)
    set_seed(config.experiment.seed)
    choose_algorithms(deterministic=config.is_deterministic)
    return ignored


def _train(run: Run, scratch: Path) -> BoxLimits:
    """Take the optimizer steps that are left; afterwards the model is plain on every rank.

    Returns:
        How many boxes the limits on objects and tokens took away.
    """
    trainer = make_trainer(run, scratch)
    confirm_comparable(run.config, run.parts, trainer.accelerator)
    checkpoint = run.log.reporter.newest
    first_step = 0
    if checkpoint is not None:
        first_step = step_of(checkpoint)
        run.log.resume(checkpoint)
        trainer.averages.resume(checkpoint)
    parts = run.parts
    limits = parts.encoding.box_limits(trainer.samples, parts.train.samples, parts.val.samples)
    run.log.start(start_lines(run.config, parts, trainer.samples, trainer.sampler, limits), step=first_step)
    if checkpoint is not None and first_step >= run.config.training.num_steps:
        trainer.load_weights(checkpoint)  # Hugging Face's loop would take one more step
        unset_hf_deepspeed_config()  # as Schedule does
    else:
        try:
            with explained_loader_death():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except BaseException as error:
            if isinstance(error, DivergedError):
                run.log.commit(trainer.state.global_step)  # the rows since the last checkpoint say how it came about
            if run.config.data.num_workers:
                traceback.clear_frames(error.__traceback__)  # they refer to the loader
                _let_go(trainer)
            raise
    # Evaluation and merge see the model's own precision, not training's autocast.
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    _let_go(trainer)
    return limits


def _let_go(trainer: CoordTrainer) -> None:
    """Free what training held; the loader's processes, which keep images in memory, end with the last reference."""
    trainer.callback_handler.train_dataloader = None
    trainer.accelerator.free_memory()


def make_trainer(run: Run, scratch: Path) -> CoordTrainer:
    """Return the trainer of a run with its schedule; ``scratch`` takes checkpoints until they are committed."""
    trainer = CoordTrainer(run.config, run.parts, run_log=run.log, scratch=scratch)
    if run.config.training.precision == "bfloat16" and trainer.args.deepspeed is not None:
        autocast_forward(run.parts.model, device_type=trainer.args.device.type)
    trainer.add_callback(Schedule(run.config, trainer, log=run.log, evaluator=run.evaluator))
    return trainer


def _evaluate(run: Run, step: int, limits: BoxLimits) -> None:
    """Evaluate on everything and commit it for good: what comes after it cannot cost it."""
    run.parts.model.eval()
    run.stop_if_asked()
    run.log.enter("evaluates")
    metrics = run.evaluator.on_all_images()
    run.log.add_evaluation(step, metrics, num_images=len(run.parts.val.samples), is_final=True)
    if ranks.rank() == 0:
        for sentence in run.evaluator.remarks(metrics):
            run.log.note(sentence, kind="warning")
        if run.config.evaluation.every_steps is not None:
            run.log.add_row(step, run.evaluator.subset_of_final())
    times = {"final/train_seconds": run.log.train_seconds, "final/steps": float(step)}
    run.log.add_row(step, times | limits.metrics())
    run.log.commit(step, is_final=True)


def _merge(run: Run) -> tuple[Ended, dict[str, float]]:
    """Write the merged checkpoint, which ends no run: all that was measured is committed. What was lost comes too.

    A run that trained all weights has no adapter to merge: its weights are the checkpoint.
    """
    config, parts, log = run.config, run.parts, run.log
    is_whole = config.training.tuning == "full"
    log.enter("merges")
    log.note("writes its weights as a checkpoint" if is_whole else "merges its adapter into the base")
    folder, encoding = RunFolder.of(config), parts.encoding
    try:
        facts = training_facts(config, parts)
        # A few short validation samples, answers included, to describe the merged model by.
        dataset = encoding.dataset(parts.val.samples)
        shortest = sorted(range(len(dataset)), key=lambda index: (dataset.lengths[index], index))[:_MERGE_SAMPLES]
        batches = [encoding.collate([dataset[index]]) for index in shortest]
        merged = merge_model(
            parts.model,
            parts.processor,
            folder.merged,
            base=ExperimentFolder.of(config).base(config),
            overwrite=True,
            samples=[model_inputs(batch, encoding.image_spec, dtype=torch.float32) for batch in batches] or None,
            trained_with=encoding.trained_with,
            facts=facts,
            gives_up=True,
        )
    except (CoordExpError, OSError, RuntimeError) as error:  # of which torch's lack of memory is one
        note_traceback(folder.path)
        what = "its checkpoint was not written" if is_whole else "its adapter was not merged"
        warning = f"{what}: {one_sentence(error)}; the same command tries that again"
        return Ended("finished", warning, is_merged=False), {}
    if facts.served:
        log.note(f"AP as served: {facts.served}")
    lost = {"final/merge_lost_logits": merged.lost_at_logits, "final/merge_lost_weights": merged.most_lost}
    log.note(f"{'written' if is_whole else 'merged'} in {merged.dtype}: {merged.sentence}")
    return Ended("finished", merged.warning), {name: value for name, value in lost.items() if value is not None}
