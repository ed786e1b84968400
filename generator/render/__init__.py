"""Copier, and what it writes: projects, versions of the template, processes that render many at once."""
