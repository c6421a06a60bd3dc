"""What a run says first."""

from coordexp.model.param_groups import GroupRow
from coordexp.train.loop.start_messages import group_table


def test_the_table_names_every_group_with_its_rate_and_decay():
    rows = [
        GroupRow("llm", 12, 345_678, 3e-3, 0.1, ""),
        GroupRow("coord_embed_offset", 1, 128_000, 1.2e-2, 0.0, "one table for embedding and head"),
    ]
    head, first, second = group_table(rows)
    assert head.split() == ["optimizer", "group", "tensors", "parameters", "lr", "decay"]
    assert first.split() == ["llm", "12", "345,678", "0.003", "0.1"]
    assert second.split()[:5] == ["coord_embed_offset", "1", "128,000", "0.012", "0"]
    assert second.endswith("one table for embedding and head")
    assert head.index("tensors") + len("tensors") == first.index("12") + 2  # columns are aligned
