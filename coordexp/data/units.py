"""Units: images that are not independent of each other, such as the frames of a clip or the slides of a patient.

One rule serves both uses: ``data.unit_by`` keeps a unit on one side of every split, and ``--unit-by`` makes units what
the statistics draw and swap (docs/STATISTICS.md).

Legend of shapes: ``N`` images, ``U`` units, ``R`` draws.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordexp.data.coco.image_fields import Record, field_texts, fields_sentence, records_of
from coordexp.data.sets.image_facts import ImageFacts
from coordexp.errors import ConfigError, DataError, counted, show

FEW_UNITS = 20
"""With fewer units, an interval rests on too few independent pieces to be relied on."""

_SHOWN = 3
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class UnitRule:
    """How an image says which unit it belongs to: by a field of its record, or by a pattern in its file's name.

    Attributes:
        text: the rule as it was written.
        option: the option or key under which it was written, for messages.
        pattern: the regular expression, if the rule is one.
    """

    text: str
    option: str = "--unit-by"
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, text: str, *, option: str = "--unit-by") -> "UnitRule":
        """Read ``FIELD``, or a regular expression whose first group is the unit; a parenthesis tells them apart.

        Raises:
            ConfigError: if the text is empty, or no regular expression with a group.
        """
        if not text.strip():
            raise ConfigError(f"{option} is empty; expected a field of the images, or a pattern with a group")
        if "(" not in text and ")" not in text:
            return cls(text.strip(), option)
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ConfigError(
                f"{option} {text}: a value with a parenthesis is a regular expression, and this is none ({error})"
            ) from None
        if not pattern.groups:
            raise ConfigError(
                f"{option} {text}: the pattern has no group; put what names the unit in parentheses, "
                r"such as ^(.+)_\d+"
            )
        return cls(text, option, pattern)

    def names(self, records: Sequence[Record], *, where: str) -> list[str | None]:
        """Return the unit of each record; None if the record names none, as its image is then a unit of its own.

        Args:
            records: one for each image.
            where: what they were read from, for messages.

        Raises:
            DataError: if no record names a unit, or all name the same one: a single unit tells nothing about others.
        """
        if self.pattern is None:
            names = field_texts(records, self.text, option=self.option, where=where)
        else:
            names = self._units_in_file_names(records, where=where)
        if len(names) > 1 and len(set(names)) == 1:
            raise DataError(
                f"{where}: {self.option} {self.text} puts all {len(names):,} images into one unit, {show(names[0])}: "
                f"nothing can be known of others from it. Choose what has more values. {fields_sentence(records)}"
            )
        return names

    def found_in(self, file_name: str) -> str | None:
        """Return the first group of the pattern in a name; None if the pattern or its group does not match."""
        match = None if self.pattern is None else self.pattern.search(file_name)
        if match is None:
            return None
        return match[1] or None

    def _units_in_file_names(self, records: Sequence[Record], *, where: str) -> list[str | None]:
        file_names = [record.get("file_name") for record in records]
        names = [self.found_in(name) if isinstance(name, str) else None for name in file_names]
        if not any(names):
            shown = ", ".join(show(name) for name in file_names[:_SHOWN])
            raise DataError(
                f"{where}: {self.option} {self.text} is found in none of the {len(names):,} file names, such as "
                f"{shown}. Its first group has to be what the images of a unit share. {fields_sentence(records)}"
            )
        return names


@dataclass(frozen=True)
class UnitNames:
    """The units of an annotation file's images, by a rule.

    Attributes:
        rule: the rule as it was written.
        of_image: unit of each image id; None if the image names no unit.
    """

    rule: str
    of_image: Mapping[int, str | None]

    @cached_property
    def num_units(self) -> int:
        return self.numbered(list(self.of_image)).num_units

    @property
    def sentence(self) -> str:
        """``660 images in 44 units (clip)``."""
        return f"{counted_images(len(self.of_image), self.num_units)} ({self.rule})"

    @property
    def remarks(self) -> list[str]:
        """Return what a reader must know of the rule's effect, a sentence each."""
        remarks: list[str] = []
        num_images = len(self.of_image)
        num_without_unit = sum(name is None for name in self.of_image.values())
        if num_without_unit:
            remarks.append(
                f"{num_without_unit:,} of {counted(num_images, 'image')} name no unit by {self.rule}: each is a unit "
                "of its own."
            )
        if self.num_units == num_images:
            remarks.append(
                f"No two of {counted(num_images, 'image')} are of one unit by {self.rule}: every number is what it is "
                "without units."
            )
        return remarks

    def numbered(self, image_ids: Sequence[int]) -> "Units":
        """Return the units of some images, numbered by their first image in the given order."""
        return Units.of([self.of_image.get(image_id) for image_id in image_ids])


@dataclass(frozen=True, eq=False)
class Units:
    """Which images belong together.

    Attributes:
        of_image: ``[N]`` the number of each image's unit.
        num_units: ``U``.
    """

    of_image: NDArray[np.int64]
    num_units: int

    @classmethod
    def of(cls, names: Sequence[str | None]) -> "Units":
        """Number units by their first image; an image without a name is a unit of its own."""
        of_image: list[int] = []
        number_of: dict[str, int] = {}
        num_units = 0
        for name in names:
            if name is not None and name in number_of:
                of_image.append(number_of[name])
                continue
            if name is not None:
                number_of[name] = num_units
            of_image.append(num_units)
            num_units += 1
        return cls(np.array(of_image, np.int64), num_units)

    @classmethod
    def single(cls, num_images: int) -> "Units":
        """Return units of one image each."""
        return cls(np.arange(num_images), num_images)

    @property
    def has_several(self) -> bool:
        """Whether any unit has two images; if none has, the statistics are those of single images."""
        return self.num_units < len(self.of_image)

    def spread(self, of_units_RU: NDArray[_T]) -> NDArray[_T]:
        """Return ``[R, N]``: each image gets what was drawn for its unit."""
        return of_units_RU[:, self.of_image] if self.has_several else of_units_RU


def read_unit_names(annotations: Path, rule: UnitRule, facts: ImageFacts | None = None) -> UnitNames:
    """Return the unit of each image of a COCO file.

    Args:
        annotations: the COCO file.
        rule: how an image says its unit.
        facts: what a set records of its validation images beside the file. Their units are taken if they were made by
            this very rule; their tags count as fields, which the annotations may not have.

    Raises:
        DataError: if the rule names no unit; the message lists the fields that there are.
    """
    records = records_of(annotations, facts)
    if facts is not None and facts.unit_by == rule.text:
        return units_of_set(list(records), facts, rule.text)
    names = rule.names(list(records.values()), where=str(annotations))
    return UnitNames(rule.text, dict(zip(records, names, strict=True)))


def units_of_set(image_ids: Sequence[int], facts: ImageFacts, rule: str) -> UnitNames:
    """Return the units that a set records for some of its validation images."""
    unit_of_image = facts.units
    return UnitNames(rule, {image_id: unit_of_image.get(image_id) for image_id in image_ids})


def counted_images(num_images: int, num_units: int | None) -> str:
    """Return ``660 images in 44 units``, or the images alone if ``num_units`` is None."""
    images = counted(num_images, "image")
    return images if num_units is None else f"{images} in {counted(num_units, 'unit')}"
