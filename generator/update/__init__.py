"""What an update does to the projects that owners have edited: replayed by Copier itself, and judged."""
