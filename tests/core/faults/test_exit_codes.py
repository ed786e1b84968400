"""The exit codes of a project are those that its README lists; the tests beside this one end runs with each of them."""

import re
from collections.abc import Sequence

from generator.answers.combinations import Combination, covering
from tests.conftest import Render
from tests.launching import module_of


def test_the_readme_of_every_project_lists_the_exit_codes(legal: Sequence[Combination], project: Render) -> None:
    for combination in covering(legal, 1):
        folder = project(**dict(combination.answers))
        (exits,) = folder.glob("*/runtime/exits.py")
        codes = [int(code) for code in module_of(exits).ExitCode]
        assert [
            int(code) for code in re.findall(r"^\| (\d+) \| \w", (folder / "README.md").read_text(), re.MULTILINE)
        ] == codes
        assert codes == [0, 1, 2, 65, 69, 75]
