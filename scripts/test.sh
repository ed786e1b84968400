#!/usr/bin/env bash
# Install what the tests of this repository need, and run them: tests/unit, tests/core and tests/cold.
# --all: the nightly ones, too.          --slice I/N: a part of the nightly ones alone; "auto": the commit chooses it.
# --durations: measure where the time goes (docs/testing.md).       --strict-budgets: fail tests that compute for too long.
# Files of tests and other options go to pytest.
# Slurm, Open MPI, MPICH and Chromium come from Debian's packages where this is root; else their tests skip and say why.
# With NO_SKIPS=1 they fail instead, but for what tests/skips.py allows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -e .venv ] || python3 -m venv .venv
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: the tests need Python 3.11 or newer, and .venv has an older one" >&2
    exit 2
fi
.venv/bin/pip install --quiet --constraint constraints.txt --constraint tests/constraints.txt --editable ".[test,site]"
sh tests/clusters/install.sh

# Two more than there are cores, since tests wait now and then.
at_once=$(($(nproc) + 2)) chosen=() options=() folders=(tests/unit tests/core tests/cold)
while [ $# -gt 0 ]; do
    case $1 in
    --all) folders+=(tests/nightly) ;;
    --slice) folders=(tests/nightly) options+=(--slice "${2:?give I/N, such as 2/5, or auto}") && shift ;;
    --durations) options+=(--costs) ;;
    tests/*) chosen+=("$1") ;;
    *) options+=("$1") ;;
    esac
    shift
done
if [ ${#chosen[@]} -eq 0 ]; then
    chosen=(--numprocesses "$at_once" --dist loadfile --no-loadscope-reorder "${folders[@]}")
fi
exec .venv/bin/python -m pytest -rs "${options[@]}" "${chosen[@]}"
