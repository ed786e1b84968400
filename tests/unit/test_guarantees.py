"""tests/guarantees/ lists what can be relied on, each with the one test that is its proof."""

import ast
import re
from pathlib import Path

from generator.answers.questions import TEMPLATE

ROW = re.compile(r"^\| ([^|]+) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def functions_of(file: str) -> set[tuple[str, str]]:
    path = TEMPLATE / file
    body = ast.parse(path.read_text()).body if path.exists() else []
    names = (node.name for node in body if isinstance(node, ast.FunctionDef))
    return {(file, name) for name in names if name.startswith("test_")}


def test_every_test_proves_one_guarantee_and_every_guarantee_has_its_test() -> None:
    pages = "".join(file.read_text() for file in sorted(Path(TEMPLATE, "tests", "guarantees").glob("*.md")))
    rows = ROW.findall(pages)
    assert len(rows) == len(re.findall("^[|].*::", pages, re.MULTILINE)), "each row is | guarantee | `FILE::TEST` |"
    proofs = [(file, name) for _, file, name in rows]
    listed = {file for file, _ in proofs}
    assert sorted(proofs) == sorted(
        set().union(*map(functions_of, listed))
    ), "each test of these files once, and no other"
    guarantees = [guarantee for guarantee, _, _ in rows]
    assert len({*guarantees}) == len(guarantees)
    assert [each for each in guarantees if len(each.split()) > 22] == []
