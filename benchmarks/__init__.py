"""Measures what this repository's commands cost, and how fast the projects train that they write."""
