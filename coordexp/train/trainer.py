"""CoordTrainer: Hugging Face's loop with our loss, counts, optimizer groups and sampler.

DDP, DeepSpeed, bf16, accumulation, schedules, activation checkpointing and resume are Hugging Face's, by configuration.
``Trainer.train`` calls our overrides in this order::

    once            get_train_dataloader   a sample that cannot be read is an item, so that its error keeps its sentence
                    _get_train_sampler     our order of samples, by length
                    create_optimizer       AdamW on our parameter groups
    optimizer step  get_batch_samples      takes the microbatches; counts their units over all ranks
      microbatch    _prepare_inputs        the batch moves itself; Trainer's expects a dict
                    compute_loss           returns its share of the loss, and measures it
                    floating_point_ops     0: Trainer's expects a dict; loop/throughput.py counts
      at the end    _clip_grad_norm        ends the run before the optimizer moves if something is not finite
                    (optimizer.step)       Schedule.on_step_end then decides whether to log and to save
    logging step    log                    hands on what was measured since the last logging step
    checkpoint      _save                  writes the adapter alone; Schedule.on_save then evaluates and commits
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor, distributed, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import Trainer

from coordexp.config.schema import RunConfig
from coordexp.data.batch import Batch, EncodedSample
from coordexp.data.images.patches import upload
from coordexp.errors import CoordExpError, DivergedError
from coordexp.model.checkpoint.adapter import save_adapter
from coordexp.runs import ranks
from coordexp.train.forward import count_units, mean_units
from coordexp.train.loop.measures import (
    ALL_GRAD_NORMS,
    HIDDEN_GRADIENT,
    RunningAverages,
    StepLog,
    TermGradients,
    coord_diagnostics,
    gradients_at_hidden,
)
from coordexp.train.loop.run_log import TrainingLog
from coordexp.train.loop.throughput import flop_units
from coordexp.train.setup.arguments import steps_on_device, training_arguments
from coordexp.train.setup.components import Components
from coordexp.train.setup.encoding import train_order
from coordexp.train.setup.loader import ErrorsAsItems, collate_or_error, give_own_seed
from coordexp.train.setup.strategy import samples_at_once

_LISTED_IMAGES = 32


class CoordTrainer(Trainer):
    """Trains one group."""

    # Tells Trainer not to divide the loss by the number of microbatches: compute_loss has divided it by the counts of
    # the whole optimizer step already.
    loss_is_scaled_for_ga = True

    def __init__(self, config: RunConfig, parts: Components, *, run_log: TrainingLog, scratch: Path) -> None:
        """Wire the trainer of a run.

        Args:
            config: the run.
            parts: its model, data, criterion and parameter groups.
            run_log: receives a :class:`StepLog` at each logging step.
            scratch: folder for checkpoints until they are committed.
        """
        arguments = training_arguments(config, output_dir=scratch)
        self.samples = parts.encoding.dataset(parts.train.samples, image_cache_mib=config.data.image_cache_mib)
        self.sampler = train_order(config, self.samples.lengths, multiple_of=samples_at_once(config))
        super().__init__(
            model=parts.model,
            args=arguments,
            train_dataset=self.samples,
            data_collator=partial(collate_or_error, parts.encoding.collate),  # pyright: ignore[reportArgumentType]
        )
        self.criterion = parts.criterion
        self.forward_terms = parts.forward_terms
        self.averages = RunningAverages()
        self.term_gradients = TermGradients()
        self.finite = FiniteSteps(self._bad_terms)
        self._groups = parts.param_groups
        self._run_log = run_log
        # Denominator of the loss sums, per image. None: the number of units in the step.
        self._mean_units_U = mean_units(self.samples) if config.training.normalise_by == "data" else None
        self._term_gradient_steps = config.training.log_term_gradients
        self._last_log: float | None = None  # time.monotonic() of the last logging step, or of the first batch
        self._fused = steps_on_device(arguments)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch | CoordExpError], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor]:
        """Take the microbatches of an optimizer step, and count what its loss sums are divided by.

        Args:
            epoch_iterator: this rank's batches, or the error of a sample that could not be read.
            num_batches: microbatches in the step.
            device: where the counts go.

        Returns:
            The microbatches, and ``[U]`` float64 counts over all ranks: their own units, or, with
            ``normalise_by: data``, those of as many average images.

        Raises:
            CoordExpError: if a sample could not be read.
        """
        started = time.monotonic()
        if self._last_log is None:
            self._last_log = started
            if self.is_deepspeed_enabled:
                # On bfloat16 weights DeepSpeed does not look for overflow by itself: it would step with gradients that
                # are not finite. Its engine exists by now.
                self.model_wrapped.optimizer.check_grad_overflow = True  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue, reportArgumentType]
            self._run_log.start_clock()

        batches: list[Batch] = []
        for batch in islice(epoch_iterator, num_batches):
            if isinstance(batch, CoordExpError):
                raise batch
            batches.append(batch)
        # Averages are summed over the ranks when they are read. Each rank adds its share, so the sum is the mean wait.
        self.averages.add("data_wait_seconds", (time.monotonic() - started) / self.args.world_size)

        counts_U = count_units(batches)
        if self._mean_units_U is not None:
            counts_U = self._mean_units_U * sum(batch.image_ids.shape[0] for batch in batches)
        counts_U = upload(counts_U, device)
        if ranks.in_process_group():
            distributed.all_reduce(counts_U)
        return batches, counts_U

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]  # a Batch, where Trainer has a dict
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return this microbatch's share of the step's loss, and add up what it measures.

        Args:
            model: the model, bare or inside DDP or DeepSpeed.
            inputs: the microbatch, on this rank's device.
            return_outputs: must be False: there are no logits to return.
            num_items_in_batch: ``[U]`` counts of the whole optimizer step, from :meth:`get_batch_samples`.

        Returns:
            The share, a scalar, times the number of ranks: DDP and ZeRO average gradients over the ranks, and our
            counts are already those of all ranks.
        """
        assert isinstance(num_items_in_batch, Tensor), "counts of the whole step are needed"
        assert not return_outputs, "there are no logits to return"
        step = self.state.global_step + 1
        terms, hidden_TD = self.forward_terms(model, inputs)
        share, sums = self.criterion(terms, num_items_in_batch)
        self.finite.add(share, inputs.image_ids)

        # Terms of weight 0 and diagnostics are measured at every step, so that the means of all groups cover the same
        # batches and can be compared.
        self.averages.add_terms(self.criterion, sums, count_units([inputs]))
        self.averages.add_diagnostics(coord_diagnostics(terms))
        self.averages.add("num_images", float(inputs.image_ids.shape[0]))
        for name, value in flop_units(inputs).items():
            self.averages.add(name, value)

        is_logging_step = step % self.args.logging_steps == 0 or step == self.args.max_steps
        if is_logging_step:
            for name, norm in gradients_at_hidden(self.criterion, terms, hidden_TD).items():
                self.averages.add(f"{HIDDEN_GRADIENT}{name}", norm)
        if self._term_gradient_steps is not None and step % self._term_gradient_steps == 0:
            shares = self.criterion.shares(terms, num_items_in_batch)
            trained = [p for p in self.forward_terms.base.parameters() if p.requires_grad]
            self.term_gradients.add(shares, trained)
        return share * self.args.world_size

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip gradients, and return their norm before clipping.

        DeepSpeed has stepped by now, but skips a step whose gradients are not finite.

        Raises:
            DivergedError: if the loss or a gradient is not finite; the optimizer has not moved.
        """
        norm = torch.as_tensor(super()._clip_grad_norm(model)).detach()
        self.finite.end(self.state.global_step + 1, norm)
        # Every rank has the same norm, and averages are summed over the ranks: each adds its share of one step.
        share = 1 / self.args.world_size
        is_clipped = (norm > self.args.max_grad_norm).double()
        self.averages.add("num_steps", share)
        self.averages.add("num_clipped", is_clipped * share)
        self.averages.add(ALL_GRAD_NORMS, norm.double() * share)
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Turn a logging step into a :class:`StepLog`.

        Args:
            logs: what Trainer would log. Without ``grad_norm`` it is Trainer's closing summary, which is dropped.
            start_time: Trainer's own clock, which counts evaluations too, and is ignored.
        """
        if "grad_norm" not in logs:
            return
        means, sums = self.averages.read()
        assert self._last_log is not None, "a step was taken"
        step_log = StepLog(
            step=self.state.global_step,
            means=means,
            sums=sums,
            seconds=time.monotonic() - self._last_log,
            grad_norm=logs["grad_norm"],
            learning_rate=logs["learning_rate"],
            epoch=self.state.epoch or 0.0,
        )
        self._run_log.on_step_log(step_log)
        self._last_log = time.monotonic()

    def _bad_terms(self) -> list[str]:
        """Return the terms and diagnostics that were not finite since the last logging step.

        It exchanges sums between the ranks, so every rank must call it at the same step.
        """
        means, _ = self.averages.read()
        return [name for name, value in means.items() if not math.isfinite(value) and name != ALL_GRAD_NORMS]

    def _prepare_inputs(self, inputs: Batch) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the batch on this rank's device. The loader has usually put it there already."""
        return inputs.to(self.args.device)

    def floating_point_ops(self, inputs: object) -> int:
        """Return 0: Trainer's count reads a dict. :mod:`coordexp.train.loop.throughput` has ours."""
        return 0

    # What Trainer asks for once, before the first step or at a checkpoint.

    def get_train_dataloader(self) -> DataLoader[object]:
        """Return the loader of this rank's batches; a sample that cannot be read is an item of it."""
        loader = self._get_dataloader(
            dataset=ErrorsAsItems(self.samples),
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )
        give_own_seed(loader.base_dataloader, self.args.seed)  # pyright: ignore[reportAttributeAccessIssue]
        return loader

    def _get_train_sampler(self, train_dataset: Dataset[EncodedSample] | None = None) -> Sampler[int]:
        return self.sampler

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Build AdamW on our parameter groups; fused on CUDA without DeepSpeed."""
        self.optimizer = AdamW(
            [dict(group) for group in self._groups],  # copies: AdamW writes its defaults into them
            betas=(self.args.adam_beta1, self.args.adam_beta2),
            eps=self.args.adam_epsilon,
            fused=self._fused or None,
        )
        self.optimizer.register_load_state_dict_pre_hook(self._keep_fused)
        return self.optimizer

    def _keep_fused(self, optimizer: Optimizer, state: dict[str, object]) -> dict[str, object]:
        """Keep this device's ``fused`` setting; torch would restore the saved one."""
        del optimizer
        saved_groups = cast("list[dict[str, object]]", state["param_groups"])
        groups = [{**group, "fused": self._fused or None} for group in saved_groups]
        return {**state, "param_groups": groups}

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write the weights that train. PEFT would save the whole tables too, since the vocabulary was resized."""
        if not isinstance(self.model, PeftModel):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            save_adapter(self.model, output_dir or str(self.args.output_dir), state_dict=state_dict)

    def load_weights(self, checkpoint: Path) -> None:
        """Load the weights of a checkpoint, and neither optimizer nor schedule."""
        self._load_from_checkpoint(str(checkpoint))


class FiniteSteps:
    """Ends a run at a step whose loss or gradients are not finite, before the optimizer moves.

    Every rank decides alike, from the summed loss: if one rank raised alone, the others would wait for it forever. The
    host waits for the device once a step to read the two numbers. It waits there anyway, in transformers' forward,
    which reads the sizes of images.
    """

    def __init__(self, bad_terms: Callable[[], list[str]]) -> None:
        """Begin with an empty step; ``bad_terms`` names what is not finite, and is called on every rank."""
        self._bad_terms = bad_terms
        self._image_ids: list[Tensor] = []
        self._loss: Tensor | None = None

    def add(self, share: Tensor, image_ids: Tensor) -> None:
        """Add a microbatch of the present step: this rank's share of the loss, and the ids of its images."""
        self._loss = share.detach() if self._loss is None else self._loss + share.detach()
        self._image_ids.append(image_ids)

    def end(self, step: int, norm: Tensor) -> None:
        """Check the step that was added, and begin the next.

        Args:
            step: its number, from 1.
            norm: norm of all gradients before clipping, equal on every rank.

        Raises:
            DivergedError: if the loss or the norm is not finite, on every rank; it names this rank's images.
        """
        assert self._loss is not None, "a microbatch was added"
        step_loss = self._loss
        image_ids = self._image_ids
        self._loss = None
        self._image_ids = []
        if ranks.in_process_group():
            distributed.all_reduce(step_loss)
        loss, grad_norm = torch.stack([step_loss.double(), norm.to(step_loss.device).double()]).tolist()
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if is_finite and grad_norm >= 0:  # DeepSpeed reports -1 for a norm that is not finite
            return

        bad_terms = self._bad_terms()
        terms = f"not finite: {', '.join(bad_terms)}" if bad_terms else "every loss term is finite"
        ids = torch.cat(image_ids).tolist()
        images = ", ".join(map(str, ids[:_LISTED_IMAGES]))
        if len(ids) > _LISTED_IMAGES:
            images += ", ..."
        raise DivergedError(
            f"step {step}: the loss is {loss}, the gradient norm {grad_norm} ({terms}) on images {images}; the weights "
            "were not changed, and earlier checkpoints are kept"
        )
