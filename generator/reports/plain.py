"""Text that other programs wrote, made fit to show: their escape sequences and control characters are taken out."""

import re

ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings: window titles, links
    r"|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
NOT_IN_XML = re.compile("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def plain(text: str) -> str:
    """Leave what XML 1.0 allows, a terminal prints as it is, and UTF-8 can hold; lines end with a newline alone."""
    lines = ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return NOT_IN_XML.sub("", lines)


def headline(text: str) -> str:
    """Give the line that says most: of a traceback the exception, else the first; "" where there is no text."""
    lines = [line for line in plain(text).splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback "):
        return next((line for line in lines[1:] if not line[0].isspace()), lines[0])
    return lines[0].strip() if lines else ""


def duration(seconds: float) -> str:
    """Give a time as people read it: 0.4 s, 12 s, 3 min 05 s, 1 h 02 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"
