"""What a measurement ends with where it cannot be made."""


class CommandError(Exception):
    """A command that is to be measured fails. The message is what it printed."""
