#!/usr/bin/env bash
# The first hour with a GPU: all that waits for one, each step in less than ten minutes. scripts/gpu.sh --help tells more.
# It uses the torch that is installed there. Where there is no network, it needs what `scripts/gpu.sh --pack FOLDER` has
# fetched elsewhere: scripts/gpu.sh --packed FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packed=
for ((i = 1; i <= $#; i++)); do
    next=$((i + 1))
    case ${!i} in
    --packed) packed=${!next:?give a folder} ;;
    --packed=*) packed=${!i#*=} ;;
    esac
done

folder_of_packages='import sysconfig; print(sysconfig.get_path("purelib"))'
if [ ! -e .venv ]; then
    python3 -m venv --system-site-packages .venv
    # If python3 is itself one of a virtual environment, that option does not show its packages.
    python3 -c "$folder_of_packages" >"$(.venv/bin/python -c "$folder_of_packages")/machine.pth"
fi
if [ -n "$packed" ]; then
    .venv/bin/pip install --quiet --no-index --no-deps --find-links "$packed" "$packed"/*.whl --editable .
    .venv/bin/python -c "import torch" # which is not packed
elif [ ! -e .venv/bin/ddp-template ]; then
    .venv/bin/pip install --quiet --constraint tests/constraints.txt --editable ".[test]" ninja setuptools wheel
fi
exec .venv/bin/python -m tools.gpu "$@"
