"""Measures what this repository's commands cost."""
