"""The files of owners of version 1 take what they take from where it is in version 2, and are else as they were."""

from pathlib import PurePath

import pytest
import yaml

from generator.answers.questions import TEMPLATE
from generator.update.migrate import MOVED
from generator.update.rewrite import MODULES, Runtime, dangling, rewrite

NOW: dict[str, set[str]] = {
    "exits": {"UserError", "ExitCode"},
    "metrics": {"Mean", "MetricAccumulator", "Progress"},
    "cli": {"PositiveInt", "NonNegativeFloat", "parse"},
    "collation": {"collate"},
    "data_loading": {"load"},
}
RUNTIME = Runtime("pkg", {"Mean", "UserError", "PositiveInt", "NonNegativeFloat"}, NOW)
HEAD = "from .runtime import Mean, UserError\n"
CASES = [
    ("from .runtime.meter import Mean\n", "from .runtime import Mean\n"),
    ("from .runtime.exits import UserError\nfrom .runtime.meter import Mean\n", HEAD),
    ("from .runtime import UserError\nfrom .runtime.meter import Mean\n", HEAD),
    ("from pkg.runtime.meter import Mean as M  # of a sum\n", "from pkg.runtime import Mean as M  # of a sum\n"),
    (
        "from .runtime.meter import (\n    Mean,  # one\n    Meter,\n)\nMeter(Mean)\n",
        "from .runtime import Mean  # one\nfrom .runtime.metrics import MetricAccumulator\nMetricAccumulator(Mean)\n",
    ),
    (
        "from .runtime.command_line import Amount, Count\nx: Count = 1\ny: 'é' = Amount\n",
        "from .runtime import NonNegativeFloat, PositiveInt\nx: PositiveInt = 1\ny: 'é' = NonNegativeFloat\n",
    ),
    (
        "from .runtime.command_line import Count\nfor Count in (): pass\n",
        "from .runtime import PositiveInt as Count\nfor Count in (): pass\n",
    ),
    (
        "from .runtime.command_line import Count\nPositiveInt = Count\n",
        "from .runtime import PositiveInt as Count\nPositiveInt = Count\n",
    ),
    (
        "from .runtime import meter\nmeter.Meter(meter.Mean)\n",
        "from .runtime import metrics\nmetrics.MetricAccumulator(metrics.Mean)\n",
    ),
    (
        "import pkg.runtime.meter\npkg.runtime.meter.Meter()\n",
        "import pkg.runtime.metrics\npkg.runtime.metrics.MetricAccumulator()\n",
    ),
    ("import pkg.runtime.meter as m\nm.Meter()\n", "import pkg.runtime.metrics as m\nm.MetricAccumulator()\n"),
    (
        "def f():\n    from .runtime.loading import collate, load\n    return collate, load\n",
        "def f():\n    from .runtime.collation import collate\n    from .runtime.data_loading import load\n"
        "    return collate, load\n",
    ),
    (
        "from .runtime import metrics\nmeter.Meter(metrics)\n",
        "from .runtime import metrics\nmetrics.MetricAccumulator(metrics)\n",
    ),
    ("from .runtime.meter import *\n", "from .runtime.metrics import *\n"),
    ("from torch import meter\nimport heartbeat\n", "from torch import meter\nimport heartbeat\n"),
    (
        '"""No é import."""\n\nmeter = 1  # of runtime/meter.py\n',
        '"""No é import."""\n\nmeter = 1  # of runtime/meter.py\n',
    ),
]
CONFIG = "from .config import Config\n\n\n"
TYPED = "def compute(model: nn.Module, batch: Any, config: Config) -> dict[str, Mean]:\n    return {}\n"
COMPUTE = "def compute(model, batch, config): pass\n"
SIGNATURES = [
    ("task", CONFIG + TYPED.replace(", config: Config", ""), CONFIG + TYPED),
    ("task", "def compute(model, batch): return {}\n", "def compute(model, batch, config): return {}\n"),
    ("task", "def compute(model, batch, scale=1): pass\n", "def compute(model, batch, config, scale=1): pass\n"),
    ("task", "def compute(model, batch, config): pass\n", "def compute(model, batch, config): pass\n"),
    ("task", "def compute(*of_both): pass\n", "def compute(*of_both): pass\n"),
    ("model", "def build_model(): return Network()\n", "def build_model(config): return Network()\n"),
    ("model", "def build_model(width=3): pass\n", "def build_model(config, width=3): pass\n"),
    ("model", "def build_model(options): pass\n", "def build_model(options): pass\n"),
    ("model", "from torch import nn\n\n\ndef build_model() -> nn.Module: ...\n",
     "from torch import nn\n\nfrom .config import Config\n\n\ndef build_model(config: Config) -> nn.Module: ...\n"),
    ("model", "from .layers import Norm\n\n\ndef build_model() -> Norm: ...\n",
     "from .config import Config\nfrom .layers import Norm\n\n\ndef build_model(config: Config) -> Norm: ...\n"),
    ("other", "def build_model(): pass\n", "def build_model(): pass\n"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), CASES)
def test_names_are_taken_from_where_they_are_now(before: str, after: str) -> None:
    path = PurePath("pkg/task.py")
    assert rewrite(path, before, RUNTIME) == after
    assert rewrite(path, after, RUNTIME) == after
    assert dangling(path, f"{after}{COMPUTE}", RUNTIME) == []


def test_files_that_are_not_the_owners_keep_what_is_still_there() -> None:
    text = "from pkg.runtime.exits import UserError\nfrom pkg.runtime.meter import Mean\n"
    assert rewrite(PurePath("train.py"), text, RUNTIME) == text.replace(".meter", "")
    assert rewrite(PurePath("pkg/task.py"), text, RUNTIME) == HEAD.replace(".runtime", "pkg.runtime")


@pytest.mark.parametrize(("file", "before", "after"), SIGNATURES)
def test_functions_get_the_options(file: str, before: str, after: str) -> None:
    assert rewrite(PurePath(f"pkg/{file}.py"), before, RUNTIME) == after


def test_what_is_gone_is_named_with_its_place() -> None:
    text = "from .runtime.meter import Mean, Totals\nfrom .runtime import update, exits\nexits.nothing()\n"
    wrong = dangling(PurePath("pkg/own.py"), rewrite(PurePath("pkg/task.py"), text, RUNTIME), RUNTIME)
    assert wrong == [
        "pkg/own.py:2: metrics has no Totals",
        "pkg/own.py:3: runtime has no optimizer_step",
        "pkg/own.py:4: exits has no nothing",
    ]
    assert not MODULES.keys() & MODULES.values()


def test_copier_leaves_every_file_that_moves() -> None:
    patterns = yaml.safe_load((TEMPLATE / "copier.yml").read_text())["_exclude"]
    assert {f"/{old}" for old in MOVED} == {pattern for pattern in patterns if "{" not in pattern}


def test_who_lacks_the_options_is_named() -> None:
    own = "from pkg import task\nfrom pkg.model import build_model\n\ntask.compute(build_model(), 1)\ncompute(1, 2)\n"
    assert dangling(PurePath("own.py"), own, RUNTIME) == [
        "own.py:4: compute() needs the options, too: config",
        "own.py:4: build_model() needs the options, too: config",
    ]
    assert dangling(PurePath("pkg/model.py"), "class Network: ...\n\n\nbuild_model = Network\n", RUNTIME) == [
        "pkg/model.py: build_model() must take config, after its other parameters"
    ]
