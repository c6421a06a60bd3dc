"""``python -m coordexp VERB``, the same as the command ``coordexp``."""

from coordexp.cli.main import main

raise SystemExit(main())
