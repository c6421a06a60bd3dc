"""What happens between the steps of a run: when it saves, evaluates, commits and stops.

Trainer saves after ``on_step_end``, if that asked for it, and then calls ``on_save``. So a checkpoint is always written
before the evaluation at its step, and is committed together with the evaluation's rows. A run that dies in between
repeats both.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from coordexp.config.schema import RunConfig
from coordexp.runs.folder import RunFolder
from coordexp.runs.stop import RunStoppedError, agreed_stop_reason
from coordexp.train.loop.evaluator import TrainingEvaluator
from coordexp.train.loop.run_log import TrainingLog
from coordexp.train.setup.arguments import check_setup
from coordexp.train.trainer import CoordTrainer


@dataclass(eq=False)
class Schedule(TrainerCallback):
    """Asks Trainer for a checkpoint when one is due or a stop is requested, evaluates there and commits."""

    config: RunConfig
    trainer: CoordTrainer
    log: TrainingLog
    evaluator: TrainingEvaluator
    _stop_reason: str | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Check what the libraries made of the requested strategy."""
        # The engine is built. From here on transformers must load and generate as it does without DeepSpeed.
        unset_hf_deepspeed_config()
        engine = self.trainer.model_wrapped
        assert isinstance(engine, nn.Module)
        check_setup(self.config, engine, trainer_world_size=args.world_size)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Tell data set and sampler which epoch it is: the loader of a resumed run, which skips batches, does not."""
        epoch = int(state.epoch or 0)
        self.trainer.samples.set_epoch(epoch)
        self.trainer.sampler.set_epoch(epoch)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Ask for a checkpoint when one is due, before an evaluation, before a stop, and at the end."""
        step = state.global_step
        is_last = step == args.max_steps
        self.log.show_step(step)
        norms = self.trainer.term_gradients.norms()
        if norms:
            self.log.add_row(step, {f"grad_norm/{name}": norm for name, norm in norms.items()})
        self._stop_reason = agreed_stop_reason(RunFolder.of(self.config).path)
        is_due = step % self.config.training.checkpoint_steps == 0 or is_last
        control.should_save = is_due or self._evaluates_at(step) or self._stop_reason is not None
        control.should_log = control.should_log or is_last

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Evaluate if it is time, commit rows and checkpoint together, and stop on all ranks if that was requested.

        Raises:
            RunStoppedError: if a stop was requested; everything is committed.
        """
        step = state.global_step
        is_last = step == args.max_steps
        with self.log.pause():
            if self._evaluates_at(step) or is_last:
                self.log.enter("validates")
                losses = self.evaluator.validation_losses()
                if losses is not None:
                    self.log.add_validation(step, *losses)
            if self._evaluates_at(step) and not is_last:  # the last step has its evaluation on all images to come
                self.log.enter("evaluates")
                metrics = self.evaluator.on_subset(step)
                num_images = len(self.evaluator.subset_indices)
                self.log.add_evaluation(step, metrics, num_images=num_images, is_final=False)
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{step}"  # where the trainer has just saved
            self.trainer.averages.save(checkpoint)
            self.log.commit(step, checkpoint)
        if not is_last:
            self.log.enter("trains")
        if self._stop_reason is not None:
            raise RunStoppedError(self._stop_reason)

    def _evaluates_at(self, step: int) -> bool:
        period = self.config.evaluation.every_steps
        return period is not None and step % period == 0
