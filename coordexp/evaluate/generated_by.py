"""Which engine wrote the answers behind a file of detections: ``generated_by.json``, and sentences for a comparison.

The same checkpoint writes other answers on another engine, in another precision, or in batches of another size. A
comparison of two losses must not become a comparison of two engines, so a report states the engine of each row.

The engine is recorded beside the detections and not in them: engines that write the same boxes leave the same bytes.
"""

import importlib.metadata
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.errors import DataError, counted
from coordexp.files import read_model, write_json
from coordexp.runs.folder import GENERATED_BY

if TYPE_CHECKING:
    from coordexp.evaluate.generate.model import AnsweringModel
    from coordexp.evaluate.settings import EvaluationSettings
    from coordexp.metrics import Decoding

UNKNOWN = "unknown"
_SHOWN_NAMES = 8


@dataclass(frozen=True)
class GeneratedBy:
    """The engine of one file of detections.

    Attributes:
        engine: ``coordexp``, or the name that the writer of the file gave, such as ``vllm``.
        version: of the engine.
        precision: of the weights, such as ``bfloat16``.
        batch_size: images answered together; None if the engine forms its own batches.
        decoding: ``constrained`` or ``free``.
        penalties: what changed the choice of tokens, such as ``repetition 1.05``; or ``none``.
        device: by name, with the number of processes.
        libraries: name -> version of the libraries that compute.
    """

    engine: str = UNKNOWN
    version: str = ""
    precision: str = UNKNOWN
    batch_size: int | None = None
    decoding: str = UNKNOWN
    penalties: str = UNKNOWN
    device: str = UNKNOWN
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def here(
        cls, answering: "AnsweringModel", settings: "EvaluationSettings", decoding: "Decoding", *, num_processes: int
    ) -> "GeneratedBy":
        """Describe this engine.

        Args:
            answering: the model.
            settings: of the evaluation.
            decoding: ``constrained`` or ``free``.
            num_processes: processes that share the images and generate in the same way.
        """
        return cls(
            engine="coordexp",
            version=importlib.metadata.version("coordexp"),
            precision=str(answering.model.dtype).removeprefix("torch."),
            batch_size=settings.batch_size,
            decoding=decoding,
            penalties="none",
            device=f"{num_processes} x {answering.hardware}",
            libraries={name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        )

    @classmethod
    def of_evaluation(
        cls, answering: "AnsweringModel", settings: "EvaluationSettings", *, num_processes: int
    ) -> "dict[Decoding, GeneratedBy]":
        """Return the engine under each decoding: this one, or the engine that wrote the answers that are given."""
        if settings.generations is None:
            return {
                decoding: cls.here(answering, settings, decoding, num_processes=num_processes)
                for decoding in settings.decoding
            }
        record = generator_of(settings.generations).record or cls()
        return {decoding: replace(record, decoding=decoding) for decoding in settings.decoding}

    def write(self, detections: Path) -> None:
        """Write the record into the folder of a file of detections."""
        write_json(detections.parent / GENERATED_BY, asdict(self), indent=1)


@dataclass(frozen=True)
class Generator:
    """What is known of a file's engine."""

    record: GeneratedBy | None = None  # None if there is none, or it could not be read
    problem: str = ""  # why it could not be read


def generator_of(detections: Path) -> Generator:
    """Return what generated a file of detections, from ``generated_by.json`` in its folder.

    That file holds one record for all files of the folder. In published results it holds one record for each file, by
    the file's name up to the first dot.
    """
    path = detections.parent / GENERATED_BY
    if not path.is_file():
        return Generator()
    try:
        content = read_model(dict[str, object], path, what="what generated the detections beside it")
        if "engine" in content:
            return Generator(read_model(GeneratedBy, path, what="one record of an engine"))
        by_name = read_model(dict[str, GeneratedBy], path, what="a record of an engine for each file")
    except DataError as error:
        return Generator(problem=f"{error}; correct or delete it: what generated these detections is not known")
    return Generator(by_name.get(detections.name.partition(".")[0]))


def engine_sentences(generators: Mapping[str, Generator]) -> list[str]:
    """Return a sentence on what the rows of a comparison share, and a caution for each field in which they differ.

    Args:
        generators: by the name of each row, such as a group or a run.

    Returns:
        Sentences; none if nothing is known of any row.
    """
    problems = list(dict.fromkeys(generator.problem for generator in generators.values() if generator.problem))
    records = {name: generator.record for name, generator in generators.items() if generator.record is not None}
    if not records:
        return problems
    shared: list[str] = []
    cautions: list[str] = []
    for field_name, value_of_row in _values(records).items():
        values = set(value_of_row.values())
        if len(values) > 1:
            cautions.append(
                f"CAUTION: rows were generated with another {field_name.replace('_', ' ')}: {_by_value(value_of_row)}. "
                "Another engine, precision or batch alone can change answers and AP; coordexp evaluate --check-engine "
                "measures by how much."
            )
        else:
            shared.append(_shown(field_name, values.pop()))

    sentences = [*problems]
    if shared:
        rows = f"all {counted(len(records), 'row')}" if len(records) > 1 else next(iter(records))
        sentences.append(f"Generated alike, {rows}: {', '.join(text for text in shared if text)}.")
    sentences += cautions
    unknown = [name for name in generators if name not in records]
    if unknown:
        sentences.append(f"Not known what generated {_names(unknown)}: no {GENERATED_BY} beside their files.")
    return sentences


def _values(records: Mapping[str, GeneratedBy]) -> dict[str, dict[str, str]]:
    """Return field -> row -> value as text. ``decoding`` is left out: a comparison states it elsewhere."""
    values: dict[str, dict[str, str]] = {
        "engine": {name: record.engine for name, record in records.items()},
        "version": {name: record.version for name, record in records.items()},
        "precision": {name: record.precision for name, record in records.items()},
        "batch_size": {name: str(record.batch_size or "") for name, record in records.items()},
        "penalties": {name: record.penalties for name, record in records.items()},
        "device": {name: record.device for name, record in records.items()},
    }
    libraries = set(itertools.chain.from_iterable(record.libraries for record in records.values()))
    for library in sorted(libraries):
        values[library] = {name: record.libraries.get(library, "") for name, record in records.items()}
    return values


def _shown(field_name: str, value: str) -> str:
    """Return a shared value in words; "" if it is not known."""
    if value in ("", UNKNOWN, "None"):
        return ""
    prefixes = {
        "engine": "", "version": "version ", "precision": "", "batch_size": "batches of ", "penalties": "penalties ",
        "device": "on ",
    }  # fmt: skip
    return prefixes.get(field_name, f"{field_name} ") + value


def _by_value(value_of_row: Mapping[str, str]) -> str:
    """Return e.g. ``float32 (A, C), bfloat16 (vllm)``."""
    rows_of_value: dict[str, list[str]] = {}
    for row, value in value_of_row.items():
        rows_of_value.setdefault(value or UNKNOWN, []).append(row)
    return ", ".join(f"{value} ({_names(rows)})" for value, rows in rows_of_value.items())


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
