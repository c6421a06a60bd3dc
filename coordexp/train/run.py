"""One run, top-down: build its parts, train, evaluate, merge.

Knows nothing of Ray. What is done already is known from the run's folder alone, so that the same call continues a run
that was stopped or killed::

    build parts ─► train ─► final evaluation ─► merge ─► finished
                   │  ▲      │                   │
                   │  └ newest checkpoint        └ a merge that fails is a warning: the run has its AP
                   │         │
                   └ commits └ commits "final/steps": from then on the evaluation is not repeated
"""

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
from coordexp.train.loop.evaluator import TrainingEvaluator
from coordexp.train.loop.messages import start_lines
from coordexp.train.loop.run_log import TrainingLog
from coordexp.train.loop.throughput import flop_counter
from coordexp.train.schedule import Schedule
from coordexp.train.setup.arguments import choose_algorithms
from coordexp.train.setup.comparable import confirm_comparable
from coordexp.train.setup.components import Components, build_components
from coordexp.train.setup.loader import explained_loader_death
from coordexp.train.setup.zero import autocast_forward
from coordexp.train.trainer import CoordTrainer

_MERGE_SAMPLES = 4  # validation samples on which the logits of the merged model are compared with the trained one's


@dataclass(frozen=True)
class TrainingRun:
    """What a run works with from its first step to its last row."""

    config: RunConfig
    parts: Components
    log: TrainingLog
    evaluator: TrainingEvaluator

    @staticmethod
    def of(
        config: RunConfig, parts: Components, *, reporter: LocalReporter, print_line: Callable[[str], None]
    ) -> "TrainingRun":
        """Join a run's parts with its log and evaluator.

        Args:
            config: the run, with its number of steps set.
            parts: what it is built of; weights must not be shared out over ranks yet, since they are counted.
            reporter: takes rows and checkpoints.
            print_line: prints a line for a person.
        """
        half_precision = config.training.precision == "bfloat16"
        flops = flop_counter(parts.model, half_precision=half_precision, num_devices=ranks.world_size())
        log = TrainingLog(config, criterion=parts.criterion, flops=flops, reporter=reporter, print_line=print_line)
        return TrainingRun(config, parts, log, TrainingEvaluator(config, parts, on_progress=log.show_answers))

    def stop_if_asked(self) -> None:
        """End the run if that was requested; every rank must call it at the same point.

        Raises:
            RunStoppedError: if a stop was requested.
        """
        reason = agreed_stop_reason(RunFolder.of(self.config).path)
        if reason is not None:
            raise RunStoppedError(reason)


def train_run(
    config: RunConfig, *, reporter: LocalReporter, print_line: Callable[[str], None], merges: bool = True
) -> Ended:
    """Run one group and seed from its newest checkpoint, or the beginning, to the merged model.

    Every rank of a process group calls this, for an experiment that was prepared.

    Args:
        config: the run.
        reporter: takes rows and checkpoints, and has those of earlier attempts.
        print_line: prints a line for a person; called on rank 0 only.
        merges: whether to write the merged checkpoint.

    Returns:
        How the run ended. A merge that failed, or lost much, is a warning there: the run has its AP.

    Raises:
        CoordExpError: if something in the run's inputs is wrong, or it would not be comparable with the others.
        RunStoppedError: if it was asked to stop; everything up to then is committed.
    """
    started = time.monotonic()
    is_first = ranks.rank() == 0
    warning = set_up_process(config)
    if warning is not None and is_first:
        print_line(warning)
        append_event(RunFolder.of(config), RunEvent("warning", time.time(), warning))

    components = build_components(config)
    run = TrainingRun.of(
        config.with_steps(len(components.train.samples)), components, reporter=reporter, print_line=print_line
    )
    run.stop_if_asked()
    folder = RunFolder.of(config)
    folder.path.mkdir(parents=True, exist_ok=True)
    if is_first:
        shutil.rmtree(folder.scratch, ignore_errors=True)  # of a killed process
        write_json(folder.param_groups, [asdict(row) for row in describe(components.param_groups)], indent=2)
    ranks.barrier()
    try:
        limits = _train(run, folder.scratch)
    finally:
        if is_first:
            shutil.rmtree(folder.scratch, ignore_errors=True)

    # Rank 0 reads for all: another rank could read the file before or after a commit, and take the other branch.
    committed = ranks.from_first([final_metrics(folder.path)])[0]
    last_step = run.config.training.num_steps
    if "final/steps" not in committed:
        _evaluate(run, last_step, limits)
    ended = Ended("finished")
    merge_losses: dict[str, float] = {}
    if merges and is_first:
        ended, merge_losses = _merge(run)

    # MLflow resumes by row number, so a repeated attempt must write the same rows in the same order. The row that every
    # attempt writes comes first. The row of the merge, which may fail once and succeed the next time, comes last.
    if "final/seconds" not in committed:  # it is there if an earlier attempt finished and only its merge failed
        run.log.add_row(last_step, {"final/seconds": _seconds_so_far(folder, started=started)})
    if merge_losses:
        run.log.add_row(last_step, merge_losses)
    ranks.barrier()
    run.log.commit(last_step, is_final=not ended.is_merged)
    return ended


def _seconds_so_far(folder: RunFolder, *, started: float) -> float:
    """Return the wall time of a whole run, earlier attempts included; this process began at ``started``, monotonic."""
    status = read_status(folder.path)
    if status.since is None:  # only an executor keeps a status: whoever calls `train_run` alone has made one attempt
        return time.monotonic() - started
    return status.seconds_until(time.time())


def set_up_process(config: RunConfig) -> str | None:
    """Set threads, seeds, algorithms and output of this process.

    Returns:
        The warning of :func:`ranks.ignore_launchers`, or None.
    """
    warning = ranks.ignore_launchers()
    shorten_temporary_folder()  # loaders exchange files through sockets there, whose paths are limited
    disable_progress_bar()  # transformers draws a bar for each checkpoint that it saves, between a run's own lines
    # On a CPU the number of threads decides last digits, and must not depend on what started the process.
    if config.training.num_threads is not None or not torch.cuda.is_available():
        torch.set_num_threads(config.threads_of_worker)
    set_seed(config.experiment.seed)
    choose_algorithms(deterministic=config.is_deterministic)
    return warning


def _train(run: TrainingRun, scratch: Path) -> BoxLimits:
    """Take the optimizer steps that are left. Afterwards the model is unwrapped on every rank.

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

    components = run.parts
    limits = components.encoding.box_limits(trainer.samples, components.train.samples, components.val.samples)
    run.log.start(start_lines(run.config, components, trainer.samples, trainer.sampler, limits), step=first_step)
    if checkpoint is not None and first_step >= run.config.training.num_steps:
        # Every step was taken before. Trainer's loop would take one more.
        trainer.load_weights(checkpoint)
        unset_hf_deepspeed_config()  # as Schedule.on_train_begin does
    else:
        _take_steps(run, trainer, checkpoint)

    # Evaluation and merge must see the model's own precision, not training's autocast.
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    _free(trainer)
    return limits


def _take_steps(run: TrainingRun, trainer: CoordTrainer, checkpoint: Path | None) -> None:
    """Train from a checkpoint, or the beginning, to the last step."""
    try:
        with explained_loader_death():
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except BaseException as error:
        if isinstance(error, DivergedError):
            run.log.commit(trainer.state.global_step)  # the rows since the last checkpoint show how it happened
        if run.config.data.num_workers:
            # The traceback's frames refer to the loader. Its processes would live on, with their images, for as long
            # as somebody holds the error.
            traceback.clear_frames(error.__traceback__)
            _free(trainer)
        raise


def _free(trainer: CoordTrainer) -> None:
    """Free what training held: the loader's processes, which keep images in memory, end with the last reference."""
    trainer.callback_handler.train_dataloader = None
    trainer.accelerator.free_memory()


def make_trainer(run: TrainingRun, scratch: Path) -> CoordTrainer:
    """Return the trainer of a run with its schedule; ``scratch`` takes checkpoints until they are committed."""
    trainer = CoordTrainer(run.config, run.parts, run_log=run.log, scratch=scratch)
    if run.config.training.precision == "bfloat16" and trainer.args.deepspeed is not None:
        autocast_forward(run.parts.model, device_type=trainer.args.device.type)
    trainer.add_callback(Schedule(run.config, trainer, log=run.log, evaluator=run.evaluator))
    return trainer


def _evaluate(run: TrainingRun, step: int, limits: BoxLimits) -> None:
    """Evaluate on all validation images, and commit that as final: a merge that fails afterwards cannot lose it."""
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
    totals = {"final/train_seconds": run.log.train_seconds, "final/steps": float(step)}
    run.log.add_row(step, totals | limits.metrics())
    run.log.commit(step, is_final=True)


def _merge(run: TrainingRun) -> tuple[Ended, dict[str, float]]:
    """Write the merged checkpoint. A run that trained all weights has no adapter: its weights are the checkpoint.

    Returns:
        How the run ended, which is never a failure: everything that it measured is committed. And the metrics of what
        the merge lost, none if it failed.
    """
    config = run.config
    folder = RunFolder.of(config)
    trains_all = config.training.tuning == "full"
    run.log.enter("merges")
    run.log.note("writes its weights as a checkpoint" if trains_all else "merges its adapter into the base")
    try:
        facts = training_facts(config, run.parts)
        merged = merge_model(
            run.parts.model,
            run.parts.processor,
            folder.merged,
            base=ExperimentFolder.of(config).base(config),
            overwrite=True,
            samples=_merge_samples(run.parts) or None,
            trained_with=run.parts.encoding.trained_with,
            facts=facts,
            gives_up=True,
        )
    except (CoordExpError, OSError, RuntimeError) as error:  # torch reports a lack of memory as a RuntimeError
        note_traceback(folder.path)
        failure = "its checkpoint was not written" if trains_all else "its adapter was not merged"
        warning = f"{failure}: {one_sentence(error)}; the same command tries that again"
        return Ended("finished", warning, is_merged=False), {}

    if facts.served:
        run.log.note(f"AP as served: {facts.served}")
    run.log.note(f"{'written' if trains_all else 'merged'} in {merged.dtype}: {merged.sentence}")
    losses = {"final/merge_lost_logits": merged.lost_at_logits, "final/merge_lost_weights": merged.most_lost}
    return Ended("finished", merged.warning), {name: value for name, value in losses.items() if value is not None}


def _merge_samples(parts: Components) -> list[dict[str, torch.Tensor]]:
    """Return model inputs of the shortest validation samples, answers included, on which the merge is measured."""
    encoding = parts.encoding
    dataset = encoding.dataset(parts.val.samples)
    shortest = sorted(range(len(dataset)), key=lambda index: (dataset.lengths[index], index))[:_MERGE_SAMPLES]
    batches = [encoding.collate([dataset[index]]) for index in shortest]
    return [model_inputs(batch, encoding.image_spec, dtype=torch.float32) for batch in batches]
