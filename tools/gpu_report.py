"""The report of scripts/gpu.sh: one file to send in, with nothing of the machine but its hardware and its versions."""

import getpass
import json
import platform
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.runner import read
from generator.answers.questions import TEMPLATE
from tools.docs.check import markdown, memory
from tools.docs.gpu import gpu_table, memory_table, save_table
from tools.docs.pages import made_from

REPORT = "report.md"
TABLES = {"Speed": gpu_table, "Memory": memory_table, "Saves": save_table}
LINES = 20  # of the log of a step that failed
# What is left of a path is its last part; an address, and the number of a GPU, are nobody's business either.
HIDDEN = {
    r"\S*/(?:site|dist)-packages/": "",
    r"(?<![\w./:])(?:file://)?/(?:[^\s/'\",:;()\[\]<>=]+/)*(?=[\w.~-])": ".../",
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b": "ADDRESS",
    r"\b(GPU|MIG)-[0-9a-f-]{8,}": r"\1",
}


def write_report(out: Path, facts: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what the steps have found so far: tables, the end of each failed step's log, and all of it as JSON."""
    figures = read(out / "gpu.json")
    if figures:
        figures["command"] = "scripts/gpu.sh"  # the one that ran names a file
    logs = {name: end_of(out / f"{name}.log", out) for name, each in results.items() if each["result"] == "failed"}
    told = {"version": metadata.version("ddp-template"), "commit": commit(), "facts": facts, "figures": figures}
    told |= {"steps": results, "logs": logs}
    rows = [[name, each["result"], each["reason"], f"{each['seconds']:.0f}"] for name, each in results.items()]
    parts = [
        f"# ddp-template {told['version']} on a GPU",
        markdown(
            ["fact", ""], ([name, memory(each) if "memory" in name else str(each)] for name, each in facts.items())
        ),
    ]
    parts += [f"## {title}\n\n{made_from(figures, make)}" for title, make in TABLES.items()]
    parts.append("## Steps\n\n" + markdown(["step", "result", "reason", "seconds"], rows))
    parts += [f"## The end of {name}.log\n\n" + block("text", lines) for name, lines in logs.items()]
    parts.append("## The same for programs\n\n" + block("json", [json.dumps(told, indent=1)]))
    temporary = out / f"{REPORT}.tmp"
    temporary.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n")
    temporary.replace(out / REPORT)


def block(kind: str, lines: Iterable[str]) -> str:
    """Return lines as a block of Markdown."""
    return "\n".join([f"```{kind}", *lines, "```"])


def commit() -> str:
    """Return the commit of this repository, if git knows it."""
    command = ["git", "-C", str(TEMPLATE), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def end_of(log: Path, out: Path) -> list[str]:
    """Return the last lines of a log, without paths, host names and user names of this machine."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [without_places(line, out) for line in lines[-LINES:]]


def without_places(line: str, out: Path) -> str:
    """Return a line without what tells on which machine, and as whom, it was printed."""
    folders = [out, TEMPLATE, Path(sys.prefix), Path(sys.base_prefix), Path(tempfile.gettempdir()), Path.home()]
    for folder in sorted({str(each) for each in folders} - {"/"}, key=len, reverse=True):
        line = line.replace(f"{folder}/", "").replace(folder, "...")
    for pattern, shown in HIDDEN.items():
        line = re.sub(pattern, shown, line)
    hosts = {socket.gethostname(), socket.getfqdn(), platform.node()} - {"localhost", ""}
    names = {host: "HOST" for each in hosts for host in (each, each.partition(".")[0])} | {user(): "USER"}
    for name, shown in names.items():
        line = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, line)
    return line


def user() -> str:
    """Return the name of the user, who may have none in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return Path.home().name
