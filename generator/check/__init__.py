"""Whether every combination is what it should be: read by tools, trained, resumed, compared."""
