"""Makes projects that were copied from uncommitted changes of the template fit for updates."""

import re
from pathlib import Path

from ..git import GitError
from ..questions import TEMPLATE
from ..rendering import ANSWERS_FILE
from .hermetic import run


def record_origin(project: Path, template: Path = TEMPLATE) -> str:
    """Record the commit that the uncommitted changes of a template are changes of, where there are any.

    Copier records a commit of its own, which nobody has when the project is to be updated. Gives what the owner of
    the project should know; "" where it was made from a commit.
    """
    try:
        changed = run(template, "status", "--porcelain", "--", ".")
        commit = run(template, "describe", "--tags", "--always")
    except GitError:
        return f"{template} has no commit: copier update will not know what this project was made from"
    if not changed:
        return ""
    answers = project / ANSWERS_FILE
    answers.write_text(re.sub(r"^_commit: .*", f"_commit: {commit}", answers.read_text(), flags=re.MULTILINE))
    return (
        f"this project was made from changes that are not committed. It is recorded as made from {commit}: "
        "copier update will take these changes for yours"
    )
