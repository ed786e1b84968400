"""PORTING.md of a project, as its reader follows it."""

import re
from pathlib import Path

STEP = r"^\d\. `([\w/.]+)`\.(?:(?!^```).)*?^```diff\n(.*?)^```$"
COMPARE = r"^## Compare\n(?:(?!^```).)*?^```diff\n(.*?)^```$"


def port(project: Path) -> str:
    """Follow the steps of the page in a project, also those for script.py. Returns the script of the example."""
    page = (project / "PORTING.md").read_text()
    steps = dict(re.findall(STEP, page, re.MULTILINE | re.DOTALL))
    [loop] = re.findall(COMPARE, page, re.MULTILINE | re.DOTALL)
    for file, diff in steps.items():
        (project / file).write_text(side(diff, "+"))
    old = "".join(side(diff, "-") for diff in steps.values())
    imports = sorted({line for line in old.splitlines(keepends=True) if re.match("import |from ", line)})
    classes = "\n".join(side(diff, "") for file, diff in steps.items() if file.endswith(("model.py", "data.py")))
    start = "".join(imports) + re.sub("^(import|from) .*\n", "", classes, flags=re.MULTILINE) + "\n\n"
    (project / "script.py").write_text(start + side(loop, "+"))
    script = start + side(loop, "-")
    assert {*old.splitlines()} <= {*script.splitlines()}, "a line that goes away or stays is not in the script"
    return script


def side(diff: str, mark: str) -> str:
    """Return the text before (-) or after (+) the changes of a diff, or the lines that stay."""
    return "".join(line[1:] or "\n" for line in diff.splitlines(keepends=True) if line[0] in f" \n{mark}")
