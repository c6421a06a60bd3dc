"""What happens between the steps of a run: when it saves, evaluates, commits and stops."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from coordexp.config.schema import RunConfig
from coordexp.runs.folder import RunFolder
from coordexp.runs.stop import RunStoppedError, agreed_stop_reason
from coordexp.train.loop.evaluator import Evaluator
from coordexp.train.loop.run_log import RunLog
from coordexp.train.setup.arguments import check_setup
from coordexp.train.trainer import CoordTrainer


@dataclass(eq=False)
class Schedule(TrainerCallback):
    """Asks for a checkpoint where the configuration says or a stop is requested, evaluates there and commits."""

    config: RunConfig
    trainer: CoordTrainer
    log: RunLog
    evaluator: Evaluator
    _stop_reason: str | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        unset_hf_deepspeed_config()  # the engine is built; transformers is to load and generate as without DeepSpeed
        engine = self.trainer.model_wrapped
        assert isinstance(engine, nn.Module)
        check_setup(self.config, engine, trainer_world_size=args.world_size)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Set the epoch of data set and sampler, which loaders that skip the batches of a resumed run do not."""
        epoch = int(state.epoch or 0)
        self.trainer.samples.set_epoch(epoch)
        self.trainer.sampler.set_epoch(epoch)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Ask for a checkpoint where one is due, before an evaluation, before a stop, and at the end."""
        self.log.show_step(state.global_step)
        norms = self.trainer.term_gradients.norms()
        if norms:
            self.log.add_row(state.global_step, {f"grad_norm/{name}": norm for name, norm in norms.items()})
        self._stop_reason = agreed_stop_reason(RunFolder.of(self.config).path)
        step, is_last = state.global_step, state.global_step == args.max_steps
        is_due = step % self.config.training.checkpoint_steps == 0 or is_last
        control.should_save = is_due or self._evaluates_at(step) or self._stop_reason is not None
        control.should_log = control.should_log or is_last

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Evaluate if it is time, commit rows and checkpoint together, and stop on all ranks if that was asked."""
        step, is_last = state.global_step, state.global_step == args.max_steps
        with self.log.pause():
            if self._evaluates_at(step) or is_last:
                self.log.enter("validates")
                losses = self.evaluator.validation_losses()
                if losses is not None:
                    self.log.add_validation(step, *losses)
            if self._evaluates_at(step) and not is_last:
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
        every = self.config.evaluation.every_steps
        return every is not None and step % every == 0
