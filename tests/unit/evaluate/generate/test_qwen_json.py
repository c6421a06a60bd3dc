"""Answers in JSON: what is an object, what is counted instead, and that nothing raises or takes long."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.evaluate.generate.qwen_json import JSON_FAILURE_KINDS, detection_prompt, parse_json_answer

CAT = '{"bbox_2d": [1, 20, 300, 1000], "label": "cat"}'
DOG = '{"bbox_2d": [5, 6, 7, 8], "label": "dog"}'


def box(*numbers: object) -> str:
    return '[{"bbox_2d": [' + ", ".join(map(str, numbers)) + '], "label": "cat"}]'


def found(text: str, **options: bool) -> tuple[list[tuple], tuple[str, ...]]:
    """Objects and failures; every object is checked against the places it names."""
    objects, failures = parse_json_answer(text, **options)
    for item in objects:
        assert [int(text[place]) for place in item.numbers] == item.bins
        assert json.loads(f'"{text[item.words]}"', strict=False) == item.desc or "\ufffd" in item.desc
    return [(item.desc, *item.bins) for item in objects], tuple(failures)


THE_CAT = ("cat", 1, 20, 300, 1000)
THE_DOG = ("dog", 5, 6, 7, 8)


def test_the_prompt_is_the_vendors() -> None:
    assert detection_prompt(["person", "traffic light"]) == (
        'Locate every instance that belongs to the following categories: "person, traffic light". '
        "Report bbox coordinates in JSON format."
    )
    assert detection_prompt(["a", "b"], template="Find {categories}!") == "Find a, b!"


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n[\n\t{CAT},\n\t{DOG}\n]\n```",
        f"[{CAT},{DOG}]",
        f"[{CAT}, {DOG},]",  # a comma too many
        f"{CAT}\n{DOG}",  # a line each
        f"[{CAT}]\n[{DOG}]",
        f"[{CAT} {DOG}]",
        f"```\n{CAT},\n{DOG}\n```",
        f"[{CAT}, {DOG}]".replace('"', "'"),  # as Python prints it
        f"[{CAT}, {DOG}]".replace("}", ', "confidence": 0.9, "is": null, "of": {"a": [1, {"b": 2}]}, "c": [[1], 2]}'),
        f"[{CAT}, {DOG}]".replace(" ", "\r\n\t"),
        f"<think>one {DOG}? [two]</think>\n[{CAT}, {DOG}]",
        f"[[{CAT}], [{DOG}]]",
        f'{{"objects": [{CAT}, {DOG}]}}',
    ],
)
def test_ways_to_write_the_same_two_objects(text: str) -> None:
    assert found(text) == ([THE_CAT, THE_DOG], ())


@pytest.mark.parametrize("text", ["[]", "```json\n[]\n```", " [ ] \n", "[[]]"])
def test_an_empty_list_is_an_answer(text: str) -> None:
    assert found(text) == ([], ())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (box(1, 2, 3), "malformed_box"),
        (box(1, 2, 3, 4, 5), "malformed_box"),
        (box(1, 2, 3, 1001), "coord_out_of_range"),
        (box(-1, 2, 3, 4), "coord_out_of_range"),
        (box(1, 2, 3, "9" * 6000), "coord_out_of_range"),
        (box(1, "abc", 3, 4), "malformed_json"),
        (box(1, "NaN", 3, 4), "malformed_box"),
        (box("001", 2, 3, 4), "malformed_json"),
        (box(1, "null", 3, 4), "malformed_box"),
        (box("[1, 2, 3, 4]"), "malformed_box"),
        (box(0.1, 0.2, 0.5, 0.9), "malformed_box"),
        (box("1, , 2", 3, 4), "malformed_json"),
        ('[{"bbox_2d": "1, 2, 3, 4", "label": "cat"}]', "malformed_box"),
        ('[{"point_2d": [1, 2], "label": "cat"}]', "malformed_box"),
        ("[{}]", "malformed_box"),
        ('[{"bbox_2d": [1, 2, 3, 4]}]', "missing_label"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": 7}]', "missing_label"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "  "}]', "missing_label"),
        ('[{"bbox_2d": [1, 2, 3, 4], "bbox_2d": [5, 6, 7, 8], "label": "cat"}]', "malformed_json"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "c\\at"}]', "malformed_json"),
        ('[{bbox_2d: [1, 2, 3, 4], "label": "cat"}]', "malformed_json"),
    ],
)
def test_a_malformed_object_is_counted_and_the_next_one_read(text: str, kind: str) -> None:
    objects, failures = found(text)
    assert objects == []
    assert set(failures) == {kind}
    assert found(f"{text}\n{DOG}") == ([THE_DOG], failures)


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        ("", ("no_json",)),
        ("There is a cat at the left.", ("no_json",)),
        ("图中有一只猫\uff0c位于左侧。", ("no_json",)),
        ("```\ncat 1 2 3 4\n```", ("no_json",)),
        ("<|object_ref_start|>cat<|box_start|>(1,2),(3,4)<|box_end|>", ("no_json",)),
        ("cat: [1, 2, 3, 4]", ("stray_text",)),
        ("[1, 2, 3, 4]", ("stray_text",)),
        ("<think>a cat at [", ("cut_off",)),
    ],
)
def test_prose_is_no_object(text: str, failures: tuple[str, ...]) -> None:
    assert found(text) == ([], failures)


def test_reasoning_that_the_prompt_opened() -> None:
    drafts = f"First {CAT}, or rather"
    assert found(drafts, thinks=True) == ([], ("cut_off",))
    assert found(f"{drafts}\n</think>\n\n[{DOG}]", thinks=True) == ([THE_DOG], ())
    assert found(f"</think> {drafts}\n</think>\n\n[{DOG}]", thinks=True) == ([THE_DOG], ())
    assert found(drafts) == ([THE_CAT], ("stray_text", "stray_text"))


def test_text_around_the_objects_is_counted_once_a_gap() -> None:
    text = f"The cat:\n```json\n[{CAT}]\n```\nand [here] the dog, it's\n{DOG}\n"
    assert found(text) == ([THE_CAT, THE_DOG], ("stray_text", "stray_text"))


def test_an_answer_cut_anywhere_keeps_its_complete_objects() -> None:
    whole = f"```json\n[{CAT}, {DOG}]"
    ends = [whole.index(CAT) + len(CAT), whole.index(DOG) + len(DOG)]
    for length in range(len(whole)):
        objects, failures = found(whole[:length])
        assert objects == [item for item, end in zip((THE_CAT, THE_DOG), ends, strict=True) if end <= length]
        assert failures == (("no_json",) if length <= len("```json\n") else ("cut_off",))


def test_a_broken_object_costs_no_other_one() -> None:
    lines = ['{"bbox_2d": [1, 2, 3, 4], "label": "cat}', '{"bbox_2d": [1, 2, 3, 4}', '{"bbox_2d": [1, 2, 3, 4]', '{"a']
    for line in lines:
        assert found(f"[{CAT},\n{line},\n{DOG}]") == ([THE_CAT, THE_DOG], ("malformed_json",)), line


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("caf\\u00e9", "café"),
        ("crème brûlée 🍮 词", "crème brûlée 🍮 词"),
        ('\\"quoted\\"', '"quoted"'),
        ("{[,:]}", "{[,:]}"),
        ("\\ud83c\\udf6e", "🍮"),
        ("a\\ud800b", "a\ufffdb"),  # half of a pair: no text that a file could hold
    ],
)
def test_a_label_is_unescaped(written: str, label: str) -> None:
    objects, failures = found(f'[{{"bbox_2d": [1, 2, 3, 4], "label": "{written}"}}]')
    assert (objects, failures) == ([(label, 1, 2, 3, 4)], ())
    label.encode()


def accepted(value: object) -> list[tuple]:
    """What a strict reader finds in valid JSON: objects with a box, also within lists and objects without one."""
    if isinstance(value, list):
        return [found for item in value for found in accepted(item)]
    if not isinstance(value, dict):
        return []
    if "bbox_2d" not in value:
        return [found for item in value.values() for found in accepted(item)]
    label, numbers = value.get("label"), value["bbox_2d"]
    is_box = isinstance(numbers, list) and len(numbers) == 4
    is_box = is_box and all(type(k) is int and 0 <= k <= 1000 for k in numbers)
    return [(label, *numbers)] if is_box and isinstance(label, str) and label.strip() else []


PLAIN = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), max_size=4)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 1005) | st.floats(0, 2000, allow_nan=False) | PLAIN,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.dictionaries(st.sampled_from(["bbox_2d", "label", "a"]), inner, max_size=3)
            | st.fixed_dictionaries(
                {"bbox_2d": st.lists(st.integers(-1, 1001), min_size=3, max_size=5), "label": st.text(max_size=3)}
            )
        ),
        max_leaves=20,
    ),
    st.booleans(),
)
def test_valid_json_reads_as_pythons_own_reader_reads_it(value: object, readable: bool) -> None:
    text = json.dumps(value, ensure_ascii=readable, indent=1 if readable else None)
    objects, failures = parse_json_answer(text)
    assert [(item.desc, *item.bins) for item in objects] == accepted(value)
    assert set(failures) <= set(JSON_FAILURE_KINDS) - {"malformed_json", "cut_off"}
