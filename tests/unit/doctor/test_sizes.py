import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.doctor.published import published_config
from coordexp.doctor.sizes import Sizes, check_optimizer, expected_shapes, meta_model, meta_run_model
from coordexp.errors import ConfigError
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_model, build_tokenizer


def _run(tuning: str = "lora", *, tie_head: bool = True, vision: bool = True, **training: object) -> ExperimentConfig:
    offset = tuning != "full"
    return ExperimentConfig.model_validate(
        {
            "training": {
                "tuning": tuning,
                "optimizer": "multimodal_coord_offset" if offset else "multimodal",
                "lora": {"rank": 4, "vision": vision},
                **training,
            },
            "custom": {"coord_offset": {"enabled": offset, "tie_head": tie_head, "dtype": "float32"}},
        }
    )


def _real(run: ExperimentConfig, *, tied: bool, structure: str, dtype: torch.dtype) -> torch.nn.Module:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, tie_word_embeddings=tied)
    vocab = expand_vocab(model, tokenizer, structure=structure)
    model = model.to(dtype)
    if run.custom.coord_offset.enabled:
        ids = [*vocab.coord_ids, *vocab.added_structure_ids]
        install_coord_offset_adapter(
            model, coord_ids=ids, tie_head=run.custom.coord_offset.tie_head, dtype=run.custom.coord_offset.dtype
        )
    lora = run.training.lora
    return apply_tuning(
        model, tuning=run.training.tuning, rank=lora.rank, alpha=8.0, dropout=0.0, vision=lora.vision, seed=0
    )


@pytest.mark.parametrize(
    ("tuning", "tied", "tie_head", "vision", "structure", "dtype"),
    [
        ("lora", True, True, True, "native", torch.bfloat16),
        ("lora", False, False, False, "spec", torch.float32),
        ("dora", True, True, True, "native", torch.float32),
        ("full", False, True, True, "native", torch.bfloat16),
    ],
)
def test_counts_are_those_of_the_real_model(tuning, tied, tie_head, vision, structure, dtype):
    run = _run(tuning, tie_head=tie_head, vision=vision)
    config = build_model(build_tokenizer(), tie_word_embeddings=tied).config
    meta = meta_run_model(
        config, run, dtype=dtype, coord_ids=range(641, 1641), num_extra_ids=2 if structure == "spec" else 0
    )
    real = _real(run, tied=tied, structure=structure, dtype=dtype)
    assert Sizes.of(meta) == Sizes.of(real)
    assert {p.device.type for p in meta.parameters()} == {"meta"}


def test_other_adapters_are_counted_otherwise():
    config = build_model(build_tokenizer()).config
    arguments = {"dtype": torch.float32, "coord_ids": range(641, 1641), "num_extra_ids": 0}
    by_tuning = {name: Sizes.of(meta_run_model(config, _run(name), **arguments)) for name in ("lora", "dora")}
    assert by_tuning["lora"].num_trained < by_tuning["dora"].num_trained


@pytest.mark.parametrize(("model", "expected"), [("2B", 2_127_532_032), ("4B", 4_437_815_808), ("8B", 8_767_123_696)])
def test_published_shapes(model, expected):
    # 4B by hand: embedding 151,936 x 2,560; 36 layers of 2 x 2,560 x 4,096 + 2 x 2,560 x 1,024 + 3 x 2,560 x 9,728
    # + 2 x 2,560 + 2 x 128; last norm 2,560; the vision tower 415.3 M.
    config = published_config(f"Qwen/Qwen3-VL-{model}-Instruct")
    found = Sizes.of(meta_model(config, dtype=torch.bfloat16))
    assert found.num == expected
    assert found.num_bytes == 2 * expected
    if model == "4B":
        layer = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
        text = 151_936 * 2560 + 36 * layer + 2560
        assert found.num - text == 415_347_712
        assert abs(found.num - 4.4e9) < 0.05e9


def test_an_unknown_model_has_no_published_shape():
    assert published_config("Qwen/Qwen3-VL-30B-A3B-Instruct") is None
    assert published_config("me/other") is None


@pytest.mark.parametrize("tied", [True, False])
def test_expected_shapes_are_what_is_saved(tied, tmp_path):
    from coordexp.model.checkpoint.weights import StoredWeights

    model = build_model(build_tokenizer(), tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    stored = StoredWeights.of(tmp_path).specs
    config = Qwen3VLForConditionalGeneration.config_class.from_pretrained(tmp_path)
    assert dict(expected_shapes(meta_model(config, dtype=torch.float32))) == {
        name: spec.shape for name, spec in stored.items()
    }


def test_a_rate_without_parameters_is_refused():
    run = _run(vision=False, vit_lr=1e-5)
    config = build_model(build_tokenizer()).config
    model = meta_run_model(config, run, dtype=torch.float32, coord_ids=range(641, 1641), num_extra_ids=0)
    with pytest.raises(ConfigError, match="vit_lr"):
        check_optimizer(model, run)
    assert check_optimizer(model, _run(vision=False)) == 2
