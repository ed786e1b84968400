"""Knows every combination of answers of the template, and renders them."""
