"""Where the base that ships with the package lies, and the name under which it is asked for."""

from pathlib import Path

EMBEDDED = "embedded"
TINY_BASE = Path(__file__).parent / "tiny_base"
