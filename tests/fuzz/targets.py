"""Every input that a user, a disk or a server can hand in, by name."""

from tests.fuzz.given import GIVEN
from tests.fuzz.stored import STORED
from tests.fuzz.support import Target

TARGETS: dict[str, Target] = {**GIVEN, **STORED}
