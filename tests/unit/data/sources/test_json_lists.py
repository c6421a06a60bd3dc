"""Long lists in stretches: whatever the guesses, the entries and the errors are those of ``json.loads``."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordexp.data.prepare.workers import Workers
from coordexp.data.sources import json_cursor
from coordexp.data.sources.json_cursor import JsonCursor, MalformedJsonError, located
from coordexp.data.sources.json_lists import Stretch, StretchRows, read_list, read_stretch, walk_object
from coordexp.errors import DataError

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from(["}, {", '"a": [{', "\\", '"', "é}, {", "日本", "\ud83d\ude00", "], "]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from("ab") | st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip
_ENTRIES = st.lists(st.dictionaries(st.sampled_from("abc"), _VALUES, max_size=3) | _VALUES, max_size=12)
_LAYOUTS = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False, "indent": "\t"}])


def keep(stretch: Stretch) -> StretchRows[list[object]]:
    rows: list[object] = []
    found = read_stretch(stretch, rows.append)
    return StretchRows(start=found.start, end=found.end, closed=found.closed, rows=rows, error=found.error)


def read_all(path, stretch_bytes):
    lists = {}

    def on_list(name, start):
        if name == "skipped":
            return None
        parts, end = read_list(path, start, keep, workers=Workers(1), stretch_bytes=stretch_bytes)
        lists[name] = [entry for part in parts for entry in part]
        return end

    others = walk_object(path, on_list)
    return lists, others


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.tuples(_ENTRIES, _ENTRIES, _ENTRIES, _VALUES), layout=_LAYOUTS,
    stretch_bytes=st.integers(1, 200), window=st.sampled_from([1, 5, 64, 2**20]),
)  # fmt: skip
def test_any_document_in_any_stretches(tmp_path, monkeypatch, parts, layout, stretch_bytes, window):
    monkeypatch.setattr(json_cursor, "_WINDOW_BYTES", window)
    first, second, skipped, other = parts
    document = {"other": other, "first": first, "skipped": skipped, "more": {}, "second": second}
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps(document, **layout).encode("utf-8", "replace"))  # a lone surrogate becomes "?"
    wanted = json.loads(path.read_bytes())
    lists, others = read_all(path, stretch_bytes)
    if isinstance(other, list):
        assert lists.pop("other") == wanted["other"]
    assert lists == {"first": wanted["first"], "second": wanted["second"]}
    assert others.keys() - {"other"} == {"more"}


@pytest.mark.parametrize("stretch_bytes", [1, 30, 47, 1000])
def test_wrong_guesses_are_found_out(tmp_path, stretch_bytes):
    """Every entry holds a list of objects that begin with the first entry's own first key."""
    entries = [{"id": i, "parts": [{"id": 100 + i}, {"id": 200 + i}, {"id": 300 + i}]} for i in range(50)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"entries": entries}))
    assert read_all(path, stretch_bytes) == ({"entries": entries}, {})


def test_a_trusted_guess_would_give_wrong_entries(tmp_path, monkeypatch):
    """Negative control: without the proof a stretch that began inside an entry counts."""
    entries = [{"id": i, "parts": [{"id": 100 + i}, {"id": 200 + i}]} for i in range(20)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"entries": entries}))
    stretch = Stretch(path, path.read_text().index('{"id": 205'), path.stat().st_size)
    assert keep(stretch).rows == [{"id": 205}]
    assert read_all(path, 60)[0]["entries"] == entries


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), entries=_ENTRIES, layout=_LAYOUTS, stretch_bytes=st.integers(1, 100))
def test_damage_is_located_where_json_locates_it(tmp_path, data, entries, layout, stretch_bytes):
    text = json.dumps({"first": entries, "n": 1, "second": entries}, **layout)
    text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.sampled_from(["", "}", "]", ",", '"', "x", "\n", "é", "0"]))
    text = text[:at] + put + text[at + data.draw(st.sampled_from([0, 1, 10**6])) :]
    path = tmp_path / "a.json"
    path.write_bytes(text.encode())
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        with pytest.raises(DataError) as refused:
            read_all(path, stretch_bytes)
        if error.msg not in {"Extra data", "Illegal trailing comma before end of object"}:
            place = f"line {error.lineno} column {error.colno}"
            assert place in str(refused.value) or "the top level is" in str(refused.value)
    except ValueError:
        with pytest.raises(DataError):
            read_all(path, stretch_bytes)
    else:
        if isinstance(json.loads(text), dict):
            read_all(path, stretch_bytes)


@pytest.mark.parametrize("stretch_bytes", range(1, 60))
def test_a_comma_before_the_end_is_refused_also_where_a_stretch_ends(tmp_path, stretch_bytes):
    """A guess inside the last entry ends a stretch behind the comma: the next one begins at the bracket."""
    path = tmp_path / "a.json"
    path.write_text('{"first": [{"a": 1}, {"a": [{"a": 2}, {"a": 3}]},]}')
    with pytest.raises(DataError, match=r"line 1 column 50: not valid JSON \(Expecting value\)"):
        read_all(path, stretch_bytes)


@pytest.mark.parametrize("window", range(1, 30))
def test_a_number_cut_by_the_window_is_read_whole(tmp_path, monkeypatch, window):
    """``12`` of ``12.5`` is a number too, and so is ``1`` of ``1e+5``."""
    monkeypatch.setattr(json_cursor, "_WINDOW_BYTES", window)
    path = tmp_path / "a.json"
    path.write_text('{"first": [12.5, 1e+5, -7.25E-2, 123456], "n": 12.5, "second": [0.5]}')
    assert read_all(path, 10) == ({"first": [12.5, 1e5, -0.0725, 123456], "second": [0.5]}, {"n": "a float"})


def test_an_error_far_inside_is_located(tmp_path, monkeypatch):
    monkeypatch.setattr(json_cursor, "_WINDOW_BYTES", 16)
    path = tmp_path / "a.json"
    path.write_bytes('{\n"é": 1,\n "ééé日": nope}'.encode())
    with pytest.raises(DataError, match=r"a\.json: line 3 column 10: not valid JSON \(Expecting value\)"):
        read_all(path, 8)
    assert "line 1 column 1:" in str(located(MalformedJsonError(0, "x"), path))


def test_a_record_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(json_cursor, "_MAX_VALUE_BYTES", 1000)
    monkeypatch.setattr(json_cursor, "_WINDOW_BYTES", 100)
    path = tmp_path / "a.json"
    path.write_text('{"first": [{"a": "' + "x" * 5000 + '"}]}')
    with pytest.raises(DataError, match="line 1 column 18: not valid JSON"):
        read_all(path, 50)


def test_a_cursor_knows_its_byte_in_any_script(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes('["é", "日本", 7]'.encode())
    with JsonCursor(path) as cursor:
        assert cursor.take("[")
        seen = []
        for _ in range(3):
            seen.append((cursor.value(), cursor.position))
            cursor.take(",")
    assert seen == [("é", 5), ("日本", 15), (7, 18)]
