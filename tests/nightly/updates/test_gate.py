"""The update gate: every released version can be updated to the template as it is, and loses nothing."""

from pathlib import Path

from generator.render.workers import Workers
from generator.update.gate import PARTS, Gate


def test_no_update_of_a_released_version_loses_anything(workers: Workers, scratch: Path) -> None:
    parts = Gate().run(workers, scratch)
    assert [wrong for part in parts for wrong in part.wrong] == []
    assert [part.name for part in parts] == [*PARTS]
    assert all(part.cases for part in parts if part.name != "edits")
