"""Whose each file of a project is: what copier.yml says of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml
from pathspec import GitIgnoreSpec

from generator.answers.questions import TEMPLATE, read_questions


@dataclass(frozen=True)
class Ownership:
    """The files of a project that an update does not treat as the template's."""

    yours: GitIgnoreSpec  # written by a copy alone
    dropped: GitIgnoreSpec  # that only earlier versions wrote
    new: GitIgnoreSpec  # of yours, what earlier versions did not write: their update does, once

    def kept(self, path: str) -> bool:
        """Return whether an update leaves the file as it is."""
        return self.yours.match_file(path) or self.dropped.match_file(path)


def read_ownership(template: Path = TEMPLATE, **answers: Any) -> Ownership:
    """Read it from the settings of a version of the template, for projects with these answers, else defaults."""
    settings = yaml.safe_load((template / "copier.yml").read_text())
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(template))
    # Ansible's, of which Copier has the real ones.
    environment.filters |= {"regex_replace": lambda text, *change: text, "fileglob": lambda path: path != "/"}
    defaults = {question.key: question.default for question in read_questions(template)}
    names = defaults | {"package_name": "ddp_project"} | answers

    def patterns(key: str, operation: str, before: Mapping[str, Any]) -> list[str]:
        # A path that is not empty stands for a file of answers that is there.
        project = {"dst_path": "", "answers_file": "answers" if before else ""}
        about = {"_copier_operation": operation, "_external_data": {"before": before}, "_copier_conf": project}
        return [environment.from_string(pattern).render(names | about) for pattern in settings.get(key, [])]

    on_copy = patterns("_exclude", "copy", {})
    yours = [pattern for pattern in patterns("_exclude", "update", names) if pattern not in on_copy]
    skipped = patterns("_skip_if_exists", "update", names)
    from_older = patterns("_exclude", "update", {})
    specs = [*yours, *skipped], on_copy, [pattern for pattern in yours if pattern not in from_older]
    return Ownership(*map(GitIgnoreSpec.from_lines, specs))
