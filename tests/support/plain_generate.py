"""The reference: transformers' own ``generate`` on one padded batch, which waits for its longest answer."""

from collections.abc import Sequence

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, State
from coordexp.data.batch import EncodedSample
from coordexp.data.images.patches import ImageSpec, pixel_values


class GrammarMask(LogitsProcessor):
    """Forbids what the grammar forbids, row by row, from the tokens behind the prompt."""

    def __init__(self, grammar: ObjectGrammar, prompt: int) -> None:
        self.grammar, self.prompt = grammar, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        state = torch.full((len(input_ids),), int(State.START), device=scores.device)
        for column in input_ids[:, self.prompt :].T:
            state = self.grammar.advance(state, column)
        return scores.masked_fill(~self.grammar.allowed_SV[state], -torch.inf)


def left_padded(
    samples: Sequence[EncodedSample], *, pad_id: int, image_token_id: int, image_spec: ImageSpec, model: PreTrainedModel
) -> dict[str, torch.Tensor]:
    """Return what ``generate`` takes for some prompts."""
    longest = max(sample.length for sample in samples)
    ids = torch.tensor([[*[pad_id] * (longest - s.length), *s.prompt_ids] for s in samples])
    seen = torch.tensor([[*[0] * (longest - s.length), *[1] * s.length] for s in samples])
    patches = torch.cat([torch.from_numpy(sample.patches) for sample in samples])
    inputs = {
        "input_ids": ids,
        "attention_mask": seen,
        "mm_token_type_ids": (ids == image_token_id).long(),
        "pixel_values": pixel_values(patches, image_spec).to(model.dtype),
        "image_grid_thw": torch.tensor([[1, *sample.grid] for sample in samples]),
    }
    return {name: value.to(model.device) for name, value in inputs.items()}


def plain_answers(
    base, numbers: Sequence[int], *, grammar: ObjectGrammar | None, max_new_tokens: int, model=None
) -> tuple[dict[int, list[int]], dict[int, list[float]]]:
    """Return ids and log probabilities of each answer, the end token included."""
    model = base.model if model is None else model
    samples = [base.sample(number) for number in numbers]
    longest = max(sample.length for sample in samples)
    pad, image = base.tokenizer.pad_token_id, base.model.config.image_token_id
    grammar = None if grammar is None else grammar.to(model.device)
    inputs = left_padded(samples, pad_id=pad, image_token_id=image, image_spec=base.image_spec, model=model)
    kept, model.generation_config = model.generation_config, GenerationConfig()
    try:
        found = model.generate(
            **inputs,
            logits_processor=LogitsProcessorList([] if grammar is None else [GrammarMask(grammar, longest)]),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=sorted({base.vocab.end_id, pad}),
                pad_token_id=pad,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
    finally:
        model.generation_config = kept
    log_probs = torch.stack([step.float().log_softmax(-1) for step in found.logits], dim=1)
    answers = found.sequences[:, longest:]
    chosen = log_probs.gather(2, answers.unsqueeze(2)).squeeze(2)
    stops = (base.vocab.end_id, pad)
    ends = [next((at + 1 for at, i in enumerate(row) if i in stops), len(row)) for row in answers.tolist()]
    return (
        {n: row[:end] for n, row, end in zip(numbers, answers.tolist(), ends, strict=True)},
        {n: row[:end] for n, row, end in zip(numbers, chosen.tolist(), ends, strict=True)},
    )
