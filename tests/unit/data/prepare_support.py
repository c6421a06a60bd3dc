"""``prepare`` with the codec ceiling that the command measures."""

from functools import partial

from coordexp.data.prepare.prepare import prepare as prepare_with
from coordexp.detection.ceiling import ceiling_of_table

prepare = partial(prepare_with, ceiling=ceiling_of_table)
