"""When a run saves, evaluates, commits and stops."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coordexp.data.batches.dataset import DetectionDataset
from coordexp.data.batches.sampler import LengthBucketSampler
from coordexp.runs.stop import RunStoppedError, StopListener
from coordexp.train.loop.averages import Meter
from coordexp.train.loop.checkpointing import Session
from coordexp.train.loop.saved_averages import save_window


class Cadence(TrainerCallback):
    """Asks for a checkpoint where the configuration says or a stop is requested, evaluates there and commits."""

    def __init__(
        self,
        session: Session,
        train_dataset: DetectionDataset,
        sampler: LengthBucketSampler,
        *,
        meter: Meter,
        listener: StopListener,
        whole: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Take the session that does the work, what to keep informed, what a checkpoint keeps, who asks to stop.

        Inside ``whole`` each rank may run the model on its own.
        """
        self._session = session
        self._train_dataset = train_dataset
        self._sampler = sampler
        self._meter = meter
        self._listener = listener
        self._whole = whole
        self._stop: str | None = None

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Tell data set and sampler their epoch.

        The loaders do it too, but not through the batch skipping of a resumed run on several ranks.
        """
        epoch = int(state.epoch or 0)
        self._train_dataset.set_epoch(epoch)
        self._sampler.set_epoch(epoch)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Ask for a checkpoint at its cadence, before an evaluation, before a stop, and at the end."""
        self._stop = self._listener.at_step()
        step = state.global_step
        due = step % self._session.config.training.checkpoint_steps == 0 or step == args.max_steps
        control.should_save = due or self._evaluates(step) or self._stop is not None
        control.should_log = control.should_log or step == args.max_steps

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Evaluate if it is time, then commit rows and checkpoint together.

        Raises:
            RunStoppedError: after that, if the run was asked to stop; on all ranks.
        """
        step = state.global_step
        with self._session.pause(), self._whole():
            if self._evaluates(step) or step == args.max_steps:
                self._session.validate(step)
            if self._evaluates(step) and step < args.max_steps:
                self._session.evaluate_subset(step)
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{step}"
            save_window(self._meter, checkpoint)
            self._session.commit(step, checkpoint)
        if self._stop is not None:
            raise RunStoppedError(self._stop)

    def _evaluates(self, step: int) -> bool:
        every = self._session.config.evaluation.every_steps
        return every is not None and step % every == 0
