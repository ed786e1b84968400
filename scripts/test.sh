#!/usr/bin/env bash
# Install what the tests of this repository need, and run them: tests/unit and tests/core.
# --all: the nightly tests, too.       --slice I/N: one part of the nightly tests; with "auto" the commit chooses it.
# Files of tests and other options go to pytest, such as --store-durations (docs/testing.md).
# Slurm, Open MPI, MPICH and Chromium come from Debian's packages if this is root; otherwise their tests skip and say why.
# With NO_SKIPS=1 they fail instead, unless tests/conftest.py allows the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -e .venv ] || python3 -m venv .venv
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: the tests need Python 3.11 or newer, and .venv has an older one" >&2
    exit 2
fi
.venv/bin/pip install --quiet --constraint constraints.txt --constraint tests/constraints.txt --editable ".[test,site]"
sh tests/clusters/install.sh

slices=28 # of the nightly tests: each takes some six minutes on two cores
# Two more than there are cores, since tests wait now and then.
at_once=$(($(nproc) + 2)) slice='' chosen=() options=() folders=(tests/unit tests/core)
while [ $# -gt 0 ]; do
    case $1 in
    --all) folders+=(tests/nightly) ;;
    --slice) slice=${2:?give I/N, such as 2/5, or auto} && shift ;;
    tests/*) chosen+=("$1") ;;
    *) options+=("$1") ;;
    esac
    shift
done
if [ -n "$slice" ]; then
    commit=$(git rev-parse HEAD)
    [ "$slice" != auto ] || slice=$((16#${commit:0:8} % slices + 1))/$slices
    folders=(tests/nightly) options+=(--splits "${slice#*/}" --group "${slice%/*}")
fi
if [ ${#chosen[@]} -eq 0 ]; then
    chosen=(--numprocesses "$at_once" --dist loadfile --no-loadscope-reorder "${folders[@]}")
fi
.venv/bin/python -m pytest -rs "${options[@]}" "${chosen[@]}" || status=$?
# 5: no tests. The last of many slices may have none, since no slice has less than its share.
[ "${status:-0}" -ne 5 ] || [ -z "$slice" ] || status=0
exit "${status:-0}"
