"""CoordTrainer: Hugging Face's loop with our loss, counts, optimizer groups and sampler.

One optimizer step is read straight down: ``get_batch_samples`` takes its microbatches and counts their units over all
ranks, ``compute_loss`` makes of each its share of the loss and measures it, ``_clip_grad_norm`` stops before the
optimizer moves if something is not finite, and ``log`` hands on what was measured since the last logging step. DDP,
DeepSpeed, bf16, accumulation, schedules, activation checkpointing and resume are Hugging Face's, by configuration.
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
from coordexp.train.loop.run_log import RunLog
from coordexp.train.loop.throughput import flop_units
from coordexp.train.setup.arguments import steps_on_device, training_arguments
from coordexp.train.setup.components import Components
from coordexp.train.setup.encoding import train_order
from coordexp.train.setup.loader import ErrorsAsItems, collate_or_error, give_own_seed
from coordexp.train.setup.strategy import samples_at_once

_LISTED_IMAGES = 32


class CoordTrainer(Trainer):
    """Trains one group.

    The loss is already divided by the counts of the whole optimizer step and multiplied by the number of ranks (DDP
    and ZeRO average over them), hence ``loss_is_scaled_for_ga``.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, config: RunConfig, parts: Components, *, run_log: RunLog, scratch: Path) -> None:
        """Wire the trainer of a run; ``scratch`` takes checkpoints until they are committed."""
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
        # By which a step's sums are divided; None: by its own units.
        self._mean_units_U = mean_units(self.samples) if config.training.normalise_by == "data" else None
        self._term_gradient_steps = config.training.log_term_gradients
        self._last_log: float | None = None
        self._fused = steps_on_device(arguments)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch | CoordExpError], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor]:
        """Take the microbatches of a step, note how long that took, and count what its sums are divided by.

        The counts are ``[U]``, over all ranks: the microbatches' own units, or those of as many average images.
        """
        started = time.monotonic()
        if self._last_log is None:
            self._last_log = started
            if self.is_deepspeed_enabled:  # it would take a step whose gradients are not finite on bfloat16 weights
                self.model_wrapped.optimizer.check_grad_overflow = True  # pyright: ignore
            self._run_log.start_clock()
        batches: list[Batch] = []
        for batch in islice(epoch_iterator, num_batches):
            if isinstance(batch, CoordExpError):
                raise batch
            batches.append(batch)
        # The ranks are summed when this is read, and each adds its share: the result is their mean.
        self.averages.add("data_wait_seconds", (time.monotonic() - started) / self.args.world_size)
        counts_U = count_units(batches)
        if self._mean_units_U is not None:
            counts_U = self._mean_units_U * sum(batch.image_ids.shape[0] for batch in batches)
        counts_U = upload(counts_U, device)
        if ranks.in_process_group():
            distributed.all_reduce(counts_U)
        return batches, counts_U

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]  # a Batch, where others have a dict
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return this microbatch's share of the step's loss, times the number of ranks."""
        assert isinstance(num_items_in_batch, Tensor), "counts of the whole step are needed"
        assert not return_outputs, "there are no logits to return"
        step = self.state.global_step + 1
        terms, hidden_TD = self.forward_terms(model, inputs)
        share, sums = self.criterion(terms, num_items_in_batch)
        self.finite.add(share, inputs.image_ids)
        # Terms of weight 0 and diagnostics at every step: each group's means then cover the same batches.
        self.averages.add_terms(self.criterion, sums, count_units([inputs]))
        self.averages.add_diagnostics(coord_diagnostics(terms))
        self.averages.add("num_images", float(inputs.image_ids.shape[0]))
        for name, value in flop_units(inputs).items():
            self.averages.add(name, value)
        if step % self.args.logging_steps == 0 or step == self.args.max_steps:
            for name, norm in gradients_at_hidden(self.criterion, terms, hidden_TD).items():
                self.averages.add(f"{HIDDEN_GRADIENT}{name}", norm)
        if self._term_gradient_steps is not None and step % self._term_gradient_steps == 0:
            shares = self.criterion.shares(terms, num_items_in_batch)
            self.term_gradients.add(shares, [p for p in self.forward_terms.base.parameters() if p.requires_grad])
        return share * self.args.world_size

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip, and stop before the optimizer moves if loss or gradients are not finite.

        DeepSpeed has stepped by now, but left such a step out.
        """
        norm = torch.as_tensor(super()._clip_grad_norm(model)).detach()
        self.finite.end(self.state.global_step + 1, norm)
        # Every rank has the same norm, and the ranks are summed when this is read: each adds its share of one step.
        share = 1 / self.args.world_size
        self.averages.add("num_steps", share)
        self.averages.add("num_clipped", (norm > self.args.max_grad_norm).double() * share)
        self.averages.add(ALL_GRAD_NORMS, norm.double() * share)
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Turn a logging step into a :class:`StepLog`; Hugging Face's closing summary is left out."""
        if "grad_norm" not in logs:
            return
        means, sums = self.averages.read()
        assert self._last_log is not None, "a step was taken"
        self._run_log.on_step_log(
            StepLog(
                step=self.state.global_step,
                means=means,
                sums=sums,
                seconds=time.monotonic() - self._last_log,
                grad_norm=logs["grad_norm"],
                learning_rate=logs["learning_rate"],
                epoch=self.state.epoch or 0.0,
            )
        )
        self._last_log = time.monotonic()

    def _bad_terms(self) -> list[str]:
        """Return what is not finite since the last row; every rank asks at the same step."""
        means, _ = self.averages.read()
        return [name for name, value in means.items() if not math.isfinite(value) and name != ALL_GRAD_NORMS]

    def _prepare_inputs(self, inputs: Batch) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the batch on this rank's device, where the loader has put it already."""
        return inputs.to(self.args.device)

    def floating_point_ops(self, inputs: object) -> int:
        """Return 0: Hugging Face's count reads a dict; :mod:`coordexp.train.loop.throughput` has ours."""
        return 0

    # What Hugging Face asks for once, before the first step or at a checkpoint.

    def get_train_dataloader(self) -> DataLoader[object]:
        """Return the loader of this rank's batches."""
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
        """Build AdamW on our parameter groups."""
        self.optimizer = AdamW(
            [dict(group) for group in self._groups],
            betas=(self.args.adam_beta1, self.args.adam_beta2),
            eps=self.args.adam_epsilon,
            fused=self._fused or None,
        )
        self.optimizer.register_load_state_dict_pre_hook(self._keep_fused)
        return self.optimizer

    def _keep_fused(self, optimizer: Optimizer, state: dict[str, object]) -> dict[str, object]:
        """Keep this device's ``fused`` setting; torch would restore the saved one."""
        del optimizer
        groups = cast("list[dict[str, object]]", state["param_groups"])
        return {**state, "param_groups": [{**group, "fused": self._fused or None} for group in groups]}

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write adapters without PEFT's guess that a resized vocabulary needs its tables saved too."""
        if not isinstance(self.model, PeftModel):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            save_adapter(self.model, output_dir or str(self.args.output_dir), state_dict=state_dict)

    def load_weights(self, checkpoint: Path) -> None:
        self._load_from_checkpoint(str(checkpoint))


class FiniteSteps:
    """Ends a run at a step whose loss or gradients are not finite, alike on every rank, before the optimizer moves.

    The host waits for the device once a step for it, as it does in transformers' forward, which reads sizes of images.
    """

    def __init__(self, bad_terms: Callable[[], list[str]]) -> None:
        self._bad_terms = bad_terms
        self._image_ids: list[Tensor] = []
        self._loss: Tensor | None = None

    def add(self, share: Tensor, image_ids: Tensor) -> None:
        """Add a microbatch of the present step: this rank's part of the loss, and its images."""
        self._loss = share.detach() if self._loss is None else self._loss + share.detach()
        self._image_ids.append(image_ids)

    def end(self, step: int, norm: Tensor) -> None:
        """Raise a DivergedError if the loss, or the norm of all gradients, is not finite: the same on every rank."""
        assert self._loss is not None
        if ranks.in_process_group():
            distributed.all_reduce(self._loss)
        loss, length = torch.stack([self._loss.double(), norm.to(self._loss.device).double()]).tolist()
        image_ids, self._loss, self._image_ids = self._image_ids, None, []
        if math.isfinite(loss) and math.isfinite(length) and length >= 0:  # DeepSpeed's is -1 where it is not finite
            return
        bad, images = self._bad_terms(), torch.cat(image_ids).tolist()
        listed = ", ".join(map(str, images[:_LISTED_IMAGES])) + (", ..." if len(images) > _LISTED_IMAGES else "")
        raise DivergedError(
            f"step {step}: the loss is {loss}, the gradient norm {length} "
            f"({'not finite: ' + ', '.join(bad) if bad else 'every loss term is finite'}) on images {listed}; "
            "the weights were not changed, and checkpoints from before are kept"
        )
