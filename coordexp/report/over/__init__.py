"""Several experiments that differ in one key: how the leads of groups change with it."""
