#!/usr/bin/env bash
# Create a project from the template's defaults in a new folder, and train it on two processes of this machine.
# Usage: scripts/try.sh [FOLDER [OPTIONS of train.py]]      (default: ddp-project in the current folder)
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
project=${1:-ddp-project}

[ -e "$repository/.venv" ] || python3 -m venv "$repository/.venv"
"$repository/.venv/bin/pip" install --quiet --editable "$repository"
"$repository/.venv/bin/ddp-template" new "$project"

cd "$project"
python3 -m venv .venv
.venv/bin/pip install --quiet --constraint "$repository/constraints.txt" --editable .
PATH="$PWD/.venv/bin:$PATH" NPROC_PER_NODE=2 ./launch.sh "${@:2}"
