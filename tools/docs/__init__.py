"""Writes what was measured, and what copier.yml says, into README.md and docs/."""
