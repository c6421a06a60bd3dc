"""Between two records a step makes the host wait for nothing: the proxy on a CPU for what a GPU would wait for."""

import importlib
from collections import Counter

import pytest

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.evaluate.generate import generation
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import Run, make_trainer
from coordexp.train.setup.components import build_components
from tests.integration.host_reads_support import HostReads
from tests.integration.training_support import prepared, small_config, write_base
from tests.model_support import NUM_LAYERS

STEPS = 3
# What only looks like a wait: of tensors on the CPU, where a device has no part in it.
ON_THE_CPU = {
    "aten::_local_scalar_dense in coord_tokens/soft_ce_w1.py:gaussian_soft_targets",  # bins, checked on a CPU alone
    "upload in transformers/vision_utils.py:get_vision_position_ids",  # positions of a size of image, made once
    "upload in transformers/masking_utils.py:and_mask",  # of what was made of numbers alone, where the mask is
    "upload in transformers/cache_utils.py:lazy_initialization",  # an empty tensor: nothing is copied
    "tolist in generate/generation.py:trimmed",  # of answers that have been copied back
    "tolist in generate/token_statistics.py:of_sequence",
    "aten::_local_scalar_dense in generate/token_statistics.py:is_finite",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base")


def reads_of_steps(config, scratch):
    """Return what waited in the steps of a run that logs and saves at its end, up to its last step."""
    run = Run.of(config, build_components(config), reporter=LocalReporter(RunFolder.of(config).path), print_line=print)
    trainer = make_trainer(run, scratch)
    reads = HostReads()
    take, steps = trainer.get_batch_samples, []

    def get_batch_samples(*args):
        reads.__exit__(None, None, None) if steps else None
        steps.append(len(reads.found))
        batches, counts = take(*args)
        reads.on_device([vars(batch) for batch in batches])
        reads.on_device([*run.parts.model.parameters(), *run.parts.model.buffers(), counts])
        reads.__enter__()
        return batches, counts

    trainer.get_batch_samples = get_batch_samples
    trainer.train()
    reads.__exit__(None, None, None)
    return reads.found[: steps[-1]], reads.found[steps[-1] :]


@pytest.mark.parametrize("group", ["A", "C", "D"])
def test_no_step_between_two_records_waits(base, tmp_path, monkeypatch, group):
    monkeypatch.setattr("coordexp.train.run.steps_on_device", lambda arguments: True)
    steps = {"max_steps": STEPS + 1, "logging_steps": STEPS + 1, "checkpoint_steps": STEPS + 1}
    config = small_config(base, tmp_path, group="A" if group == "D" else group, **steps)
    if group == "D":
        switched = {"coord_soft_ce_w1": {"enabled": True}, "coord_offset": config.custom.coord_offset}
        config = config.model_copy(update={"custom": switched, "objective": {"use_coord_ce": False}})
    between, last = reads_of_steps(prepared(config), tmp_path / "scratch")
    assert set(between) - ON_THE_CPU == set()
    assert any("finite.py:look" in one for one in last)


def test_transformers_own_forward_and_a_look_at_every_step_wait(base, tmp_path, monkeypatch):
    """Negative control of the test above, and what is spared."""
    load_module = importlib.import_module("coordexp.model.loading")
    monkeypatch.setattr(load_module, "install_image_forward", lambda model: None)
    config = small_config(base, tmp_path, max_steps=STEPS + 1, logging_steps=STEPS + 1, checkpoint_steps=STEPS + 1)
    between, _ = reads_of_steps(prepared(config), tmp_path / "scratch")
    counts = Counter(one.partition(":")[0] for one in between if one not in ON_THE_CPU)
    # Queries, keys and values of each layer, and the sizes of the images.
    assert counts["tolist in qwen3_vl/modeling_qwen3_vl.py"] == STEPS * (3 * NUM_LAYERS + 1)
    assert counts["tolist in loop/finite.py"] == STEPS
    assert sum(counts.values()) > 30 * STEPS


def test_answers_wait_where_one_looks_for_their_ends_alone(base, tmp_path, monkeypatch):
    every = 5
    monkeypatch.setitem(generation._LOOK_EVERY, "cpu", every)
    config = prepared(small_config(base, tmp_path, max_steps=1))
    parts = build_components(config)
    samples = parts.encoding.dataset(parts.val.samples, with_targets=False)
    vocab, vocab_size = parts.encoding.vocab, parts.model.config.get_text_config().vocab_size
    passes = []
    parts.model.get_base_model().lm_head.register_forward_hook(lambda *_: passes.append(1))
    reads = HostReads()
    reads.on_device([*parts.model.parameters(), *parts.model.buffers()])
    grammar = ObjectGrammar.for_model(vocab, parts.encoding.tokenizer, vocab_size=vocab_size)
    reads.on_device(list(vars(grammar).values()))
    spec = generation.GenerationSpec(
        max_new_tokens=40,
        pad_id=parts.encoding.tokenizer.pad_token_id,
        image_token_id=parts.encoding.prompt.image_token_id,
        image_spec=parts.encoding.image_spec,
        end_id=vocab.end_id,
        number_ids=vocab.numbers.ids,
    )
    with generation.evaluation_mode(parts.model), reads:
        found = generation.generate_sequences(
            parts.model, samples, spec=spec, grammar=grammar, queues=[range(len(samples))], batch_size=2
        )
    assert len(found) == len(samples) > 2
    counts = Counter(one for one in reads.found if one not in ON_THE_CPU)
    looks, takes = counts.pop("tolist in generate/rows.py:ended"), counts.pop("tolist in generate/rows.py:take")
    copies = counts.pop("cpu in generate/rows.py:take")
    assert counts == {}
    assert looks == (len(passes) - len(samples)) // every  # a prompt at a time: a quarter of two rows
    assert takes == 2 * copies <= 2 * len(samples)
