#!/usr/bin/env bash
# Run the tests of this repository, and install all that they need before. Options go to pytest.
# Slurm, Open MPI, MPICH and Chromium come from Debian's packages where this is root; else their tests skip and say why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -e .venv ] || python3 -m venv .venv
.venv/bin/pip install --quiet --constraint constraints.txt --constraint tests/constraints.txt --editable ".[test]"
sh tests/clusters/install.sh
exec .venv/bin/python -m pytest "$@"
