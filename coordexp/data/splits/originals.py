"""Names of pictures that a tool has copied: the name of the original before the tool's suffix."""

import re
from pathlib import PurePosixPath

# Roboflow writes NAME_jpg.rf.0123456789abcdef.jpg for each augmented copy of NAME.jpg.
_COPY = re.compile(r"(_(jpe?g|png|webp|bmp|tiff?))?\.rf\.[0-9A-Za-z]+$|[ _-]aug(mented)?[_-]?\w*$", re.IGNORECASE)


def original_name(name: str) -> str:
    """Return the stem of the picture that a name is a copy of; its own stem if no tool has copied the picture."""
    return _COPY.sub("", PurePosixPath(name.replace("\\", "/")).stem)


def is_copy(name: str) -> bool:
    """Return whether a tool has made a picture as a copy of another one, by its name."""
    return _COPY.search(PurePosixPath(name.replace("\\", "/")).stem) is not None
