"""When a run saves, evaluates, commits and stops."""

from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coordexp.config.schema import ExperimentConfig
from coordexp.data.dataset import DetectionDataset
from coordexp.data.sampler import LengthBucketSampler
from coordexp.runs.stop import RunStoppedError, StopListener
from coordexp.train.loop.averages import RunningAverages
from coordexp.train.loop.evaluator import Evaluator
from coordexp.train.loop.run_log import RunLog


class EpochSetter(TrainerCallback):
    """Sets the epoch of data set and sampler.

    The loaders do it too, but not through the batch skipping of a resumed run on several ranks.
    """

    def __init__(self, train_dataset: DetectionDataset, sampler: LengthBucketSampler) -> None:
        self._train_dataset = train_dataset
        self._sampler = sampler

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Set the epoch of both."""
        epoch = int(state.epoch or 0)
        self._train_dataset.set_epoch(epoch)
        self._sampler.set_epoch(epoch)


class Schedule(TrainerCallback):
    """Asks for a checkpoint where the configuration says or a stop is requested, evaluates there and commits."""

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        log: RunLog,
        evaluator: Evaluator,
        averages: RunningAverages,
        listener: StopListener,
    ) -> None:
        """Wire the schedule of a run.

        Args:
            config: of the run.
            log: commits rows and checkpoints.
            evaluator: of the model.
            averages: of the trainer; a checkpoint keeps them.
            listener: knows whether the run is asked to stop.
        """
        self._config = config
        self._log = log
        self._evaluator = evaluator
        self._averages = averages
        self._listener = listener
        self._stop_reason: str | None = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Ask for a checkpoint where one is due, before an evaluation, before a stop, and at the end."""
        self._stop_reason = self._listener.at_step()
        step, is_last = state.global_step, state.global_step == args.max_steps
        is_due = step % self._config.training.checkpoint_steps == 0 or is_last
        control.should_save = is_due or self._evaluates_at(step) or self._stop_reason is not None
        control.should_log = control.should_log or is_last

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Evaluate if it is time, then commit rows and checkpoint together.

        Raises:
            RunStoppedError: after that, if the run was asked to stop; on all ranks.
        """
        step, is_last = state.global_step, state.global_step == args.max_steps
        with self._log.pause():
            if self._evaluates_at(step) or is_last:
                losses = self._evaluator.validation_losses()
                if losses is not None:
                    self._log.add_validation(step, *losses)
            if self._evaluates_at(step) and not is_last:
                metrics = self._evaluator.on_subset(step)
                num_images = len(self._evaluator.subset_indices())
                self._log.add_evaluation(step, metrics, num_images=num_images, is_final=False)
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{step}"  # where the trainer has just saved
            self._averages.save(checkpoint)
            self._log.commit(step, checkpoint)
        if self._stop_reason is not None:
            raise RunStoppedError(self._stop_reason)

    def _evaluates_at(self, step: int) -> bool:
        every = self._config.evaluation.every_steps
        return every is not None and step % every == 0
