"""``python -m coordexp.report``, the same as ``coordexp report``."""

import sys

from coordexp.cli.main import main

raise SystemExit(main(["report", *sys.argv[1:]]))
