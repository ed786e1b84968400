"""The numeric guarantees of docs/exact.md: whole programs of rendered projects against oracles."""
