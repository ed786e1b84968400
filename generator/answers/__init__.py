"""The questions of the template, the combinations of answers, and which of them to look at."""
