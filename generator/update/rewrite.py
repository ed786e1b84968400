"""Rewrites what a Python file of an owner imports from runtime/, and uses of it. All else stays as it was typed."""

import ast
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import PurePath

# Modules of runtime/ in version 1, and what they are called since version 2.
MODULES = {
    "averaging": "optimizer_step",
    "command_line": "cli",
    "exchange": "doctor_ranks",
    "heartbeat": "watchdog",
    "loading": "data_loading",
    "machine": "doctor_node",
    "meter": "metrics",
    "placement": "devices",
    "process_group": "distributed",
    "reproducibility": "seeding",
    "sweeping": "sweep",
    "update": "optimizer_step",
}
# Names in these modules.
NAMES = {
    "Amount": "NonNegativeFloat",
    "Average": "ExponentialMovingAverage",
    "Count": "PositiveInt",
    "CountOrAuto": "NonNegativeIntOrAuto",
    "CountOrZero": "NonNegativeInt",
    "File": "OptionalPath",
    "Meter": "MetricAccumulator",
    "Share": "UnitFloat",
    "World": "DistEnv",
    "on_every_rank": "on_all_ranks",
    "on_main": "on_rank_zero",
    "whole_file": "atomic_write",
}
GONE = NAMES | MODULES | {"world": "env"}  # which was a variable of train.py
# Functions that always get the options since version 2: the file, the name, and how many arguments go before them.
GET_OPTIONS = {("task.py", "compute"): 2, ("model.py", "build_model"): 0}

OWNERS = ("task", "model", "data", "options")
LISTED = r"\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*"  # names after "import", in one line without a comment
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Runtime:
    """What runtime/ of a project has."""

    package: str
    door: Set[str]  # names that .runtime itself offers
    modules: Mapping[str, Set[str]]  # names that each module defines
    imported: Mapping[str, Set[str]] = field(default_factory=dict)  # and those that it imports

    def find(self, module: str, name: str) -> tuple[str, str] | None:
        """Return the module ("" for the door) and the name in version 2 of a name of version 1; None if it is gone."""
        for new in (NAMES.get(name, name), name):
            if new in self.door:
                return "", new
            holders = [each for each, names in self.modules.items() if new in names]
            for each in (MODULES.get(module, module), *(holders if len(holders) == 1 else ())):
                if each in holders:
                    return each, new
        return None

    def has(self, module: str, name: str) -> bool:
        if module == "":
            return name in self.door | self.modules.keys()
        return name in self.modules.get(module, ()) or name in self.imported.get(module, ())


@dataclass
class Source:
    """A Python file, and the edits that it needs."""

    path: PurePath  # in the project
    text: str
    runtime: Runtime
    edits: list[tuple[int, int, str]] = field(default_factory=list)  # begin and end in bytes, and the new text

    def __post_init__(self) -> None:
        self.bytes = self.text.encode()
        self.tree = ast.parse(self.text)
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.nodes = [*ast.walk(self.tree)]

    def begin(self, node: ast.expr | ast.stmt | ast.arg | ast.alias) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.arg | ast.alias) -> int:
        return self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def edit(self, begin: int, end: int, text: str) -> None:
        self.edits.append((begin, end, text))

    def edited(self) -> str:
        """Return the text with all edits, which do not overlap."""
        result = self.bytes
        for begin, end, text in sorted(self.edits, reverse=True):
            result = result[:begin] + text.encode() + result[end:]
        return result.decode()

    def module_of(self, node: ast.ImportFrom) -> str | None:
        """Return the module of runtime/ that a statement imports from, "" for the door; None for all others."""
        folder = self.path.parent.parts
        base = folder[: len(folder) - node.level + 1] if node.level else ()
        module = ".".join((*base, *([node.module] if node.module else [])))
        inside, prefix = f"{module}.", f"{self.runtime.package}.runtime."
        return inside.removeprefix(prefix).rstrip(".") if inside.startswith(prefix) else None

    def imports(self) -> Iterator[tuple[ast.ImportFrom, str]]:
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and (module := self.module_of(node)) is not None:
                yield node, module

    def bindings(self, name: str) -> int:
        """Return how often a file binds a name."""
        bound = [node.id for node in self.nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
        bound += [node.name for node in self.nodes if isinstance(node, Function)]
        bound += [node.arg for node in self.nodes if isinstance(node, ast.arg)]
        bound += [(node.asname or node.name).split(".")[0] for node in self.nodes if isinstance(node, ast.alias)]
        return bound.count(name)


def rewrite(path: PurePath, text: str, runtime: Runtime) -> str:
    """Return the text of a file with the imports, names and signatures of version 2. Raises SyntaxError.

    In the owner's files every import moves to the door. In other files only imports of names that are gone change.
    """
    source = Source(path, text, runtime)
    is_owners = str(path) in {f"{runtime.package}/{name}.py" for name in OWNERS} | {"tests/task.py"}
    rewrite_imports(source, everywhere=is_owners)
    rewrite_attributes(source)
    for node in source.tree.body if is_owners else ():
        if isinstance(node, ast.FunctionDef) and (path.name, node.name) in GET_OPTIONS:
            give_options(source, node, GET_OPTIONS[path.name, node.name])
    return re.sub(
        rf"(?m)^( *)from (\S*\bruntime) import {LISTED}(?:\n\1from \2 import {LISTED})+$", joined, source.edited()
    )


def joined(statements: re.Match[str]) -> str:
    """Return one import for several ones from the same place, with its names in the order of tools that sort."""
    begin, _, _ = statements[0].partition(" import ")
    names = {name for line in statements[0].splitlines() for name in line.partition(" import ")[2].split(", ")}
    return f"{begin} import {', '.join(sorted(names, key=in_order))}"


def rewrite_imports(source: Source, *, everywhere: bool) -> None:
    """Import each name from its module of version 2. Uses of a renamed name get the new name."""
    renamed: dict[str, str] = {}
    for node, module in source.imports():
        if not everywhere and all(source.runtime.has(module, alias.name) for alias in node.names):
            continue
        places: dict[str, list[str]] = {}
        for alias in node.names:
            found = source.runtime.find(module, alias.name) if module else ("", MODULES.get(alias.name, alias.name))
            place, new = found or (MODULES.get(module, module), alias.name)
            kept = alias.asname
            if new != alias.name and not kept:
                if source.bindings(alias.name) == 1 and not source.bindings(new):
                    renamed[alias.name] = new
                else:
                    kept = alias.name
            places.setdefault(place, []).append(f"{new} as {kept}" if kept else new)
        if places != {module: [ast.unparse(alias) for alias in node.names]}:
            source.edit(source.begin(node), source.end(node), statements(source, node, module, places))
    if source.path.name == "config.py":  # Copier has merged its imports: lines of the owner still use the old names
        renamed |= {old: new for old, new in NAMES.items() if not source.bindings(old) and source.bindings(new)}
    for name in source.nodes:
        if isinstance(name, ast.Name) and name.id in renamed:
            source.edit(source.begin(name), source.end(name), renamed[name.id])
        for quoted in (getattr(name, part, None) for part in ("annotation", "returns")):
            if isinstance(quoted, ast.Constant) and quoted.value in renamed:
                source.edit(source.begin(quoted) + 1, source.end(quoted) - 1, renamed[quoted.value])


def in_order(name: str) -> tuple[bool, bool, str]:
    """Put names into the order of tools that sort imports: constants, classes, functions."""
    return not name.isupper(), name[0].islower(), name


def statements(source: Source, node: ast.ImportFrom, module: str, places: Mapping[str, list[str]]) -> str:
    """Return the statements that take the place of one, with its comments."""
    written = ast.get_source_segment(source.text, node) or ""
    comments = "".join(f"  {comment}" for comment in re.findall(r"#.*", written))
    way = "." * node.level + (node.module or "").removesuffix(module).rstrip(".")
    lines = [
        f"from {way}{'.' if place and way.strip('.') else ''}{place} import {', '.join(sorted(names, key=in_order))}"
        for place, names in places.items()
    ]
    return f"\n{' ' * node.col_offset}".join([lines[0] + comments, *lines[1:]])


def rewrite_attributes(source: Source) -> None:
    """Rename modules of runtime/ where their path is written out, and names that are taken from a module."""
    prefix, modules = f"{source.runtime.package}.runtime", dict(modules_in(source))
    # Copier has merged the new imports of train.py. Lines of the owner there still use the old names of modules.
    lost = {old for old, new in MODULES.items() if not source.bindings(old) and new in modules}
    modules |= {old: old for old in lost}
    for node in source.nodes:
        if isinstance(node, ast.Name) and node.id in lost:
            source.edit(source.begin(node), source.end(node), MODULES[node.id])
        elif isinstance(node, ast.alias) and node.name.rpartition(".")[0] == prefix:
            new = MODULES.get(node.name.rpartition(".")[2])
            if new:
                source.edit(source.begin(node), source.begin(node) + len(node.name.encode()), f"{prefix}.{new}")
        elif isinstance(node, ast.Attribute):
            holder, end = ast.unparse(node.value), source.end(node)
            found = source.runtime.find(modules[holder], node.attr) if holder in modules else None
            new = MODULES.get(node.attr) if holder == prefix else found and found[1]
            if new and new != node.attr:
                source.edit(end - len(node.attr.encode()), end, new)


def modules_in(source: Source) -> Iterator[tuple[str, str]]:
    """Yield the names that a file has for modules of runtime/, as it was typed, and these modules."""
    prefix = f"{source.runtime.package}.runtime."
    for node, module in source.imports():
        if module == "":
            yield from ((each.asname or each.name, each.name) for each in node.names)
    for whole in source.nodes:
        if isinstance(whole, ast.Import):
            named = (each for each in whole.names if each.name.startswith(prefix))
            yield from ((each.asname or each.name, each.name.removeprefix(prefix)) for each in named)


def give_options(source: Source, node: ast.FunctionDef, after: int) -> None:
    """Add a parameter for the options to a function that has as many parameters without defaults as in version 1."""
    given = [*node.args.posonlyargs, *node.args.args]
    needed = len(given) - len(node.args.defaults)
    if needed != after or node.args.vararg or any(each.arg == "config" for each in given):
        return
    typed = node.returns is not None or any(each.annotation for each in given)
    told = "config: Config" if typed else "config"
    if after:
        at = source.end(given[after - 1])
        source.edit(at, at, f", {told}")
    else:
        at = source.bytes.index(b"(", source.begin(node)) + 1
        source.edit(at, at, told + (", " if given else ""))
    if typed and not source.bindings("Config"):
        import_config(source)


def import_config(source: Source) -> None:
    """Import the class of the options, where a tool that sorts imports would put it."""
    imports = [node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    relative = [node for node in imports if isinstance(node, ast.ImportFrom) and node.level]
    if relative:
        source.edit(source.begin(relative[0]), source.begin(relative[0]), "from .config import Config\n")
    elif imports:
        source.edit(source.end(imports[-1]), source.end(imports[-1]), "\n\nfrom .config import Config")
    else:
        at = source.begin(source.tree.body[ast.get_docstring(source.tree) is not None])
        source.edit(at, at, "from .config import Config\n\n")


def without_options(source: Source) -> Iterator[str]:
    """Say which functions do not take the options yet, and who calls them without."""
    functions = {node.name: node.args for node in source.tree.body if isinstance(node, ast.FunctionDef)}
    for (file, name), before in GET_OPTIONS.items():
        its_own = source.path == PurePath(source.runtime.package, file)
        if its_own:
            taken = functions.get(name)
            if not (taken and (taken.vararg or len(taken.posonlyargs + taken.args) > before)):
                yield f"{source.path}: {name}() must take config, after its other parameters"
        named = {f"{file.removesuffix('.py')}.{name}"}
        if its_own or any(imports_it(node, file, name) for node in source.nodes):
            named.add(name)
        for node in (node for node in source.nodes if isinstance(node, ast.Call)):
            if ast.unparse(node.func) in named and len(node.args) == before and not node.keywords:
                yield f"{source.path}:{node.lineno}: {name}() needs the options, too: config"


def imports_it(node: ast.AST, file: str, name: str) -> bool:
    """Return whether a statement imports a function from a file of the owner."""
    module = node.module if isinstance(node, ast.ImportFrom) else None
    names = [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
    return f".{module}.py".endswith(f".{file}") and name in names


def dangling(path: PurePath, text: str, runtime: Runtime) -> list[str]:
    """Say which names a file uses that runtime/ does not have, and what lacks the options."""
    source = Source(path, text, runtime)
    modules, words = dict(modules_in(source)), []
    for node, module in source.imports():
        if module and module not in runtime.modules:
            words.append(f"{path}:{node.lineno}: runtime/ has no module {module}")
        else:
            lacking = [each.name for each in node.names if each.name != "*" and not runtime.has(module, each.name)]
            words += [f"{path}:{node.lineno}: {module or 'runtime'} has no {name}" for name in lacking]
    for use in (node for node in source.nodes if isinstance(node, ast.Attribute)):
        module = modules.get(ast.unparse(use.value), "")
        if module in runtime.modules and not runtime.has(module, use.attr):
            words.append(f"{path}:{use.lineno}: {module} has no {use.attr}")
    words += [f"{path}:{use.lineno}: {use.id} is {GONE[use.id]} in version 2" for use in unbound(source)]
    return [*words, *without_options(source)]


def unbound(source: Source) -> Iterator[ast.Name]:
    """Yield the uses of names of version 1 that nothing in the file defines any more."""
    if any(alias.name == "*" for node in source.nodes if isinstance(node, ast.ImportFrom) for alias in node.names):
        return
    for node in source.nodes:
        if isinstance(node, ast.Name) and node.id in GONE and not source.bindings(node.id):
            yield node
