"""Parts of a report, a file each: how it is computed, and how it is shown."""
