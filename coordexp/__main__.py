"""``python -m coordexp``."""

from coordexp.cli import main

raise SystemExit(main())
