"""What answers, or versions of the template, make different in projects."""
