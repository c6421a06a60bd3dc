"""``python -m coordexp``."""

from coordexp.cli.main import main

raise SystemExit(main())
