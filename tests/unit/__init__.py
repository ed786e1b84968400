"""Tests that start no process: they take seconds together."""
