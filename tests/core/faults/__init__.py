"""What real clusters do to training jobs, and what a project makes of it."""
