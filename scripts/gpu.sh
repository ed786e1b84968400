#!/usr/bin/env bash
# Eight minutes with a GPU: what waits for one, the most telling first. gpu-results/report.md is then the file to send in.
# It takes the torch that is installed: that of $PYTHON, or of the first Python whose torch sees a GPU. --help tells more.
# Where there is no network, it needs what `scripts/gpu.sh --pack FOLDER` has fetched elsewhere: scripts/gpu.sh --packed FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GPU_SH_BEGAN=$(date +%s)
export GPU_SH_BEGAN

packed=
chosen=
for ((i = 1; i <= $#; i++)); do
    next=$((i + 1))
    case ${!i} in
    --packed) packed=${!next:?give a folder} ;;
    --packed=*) packed=${!i#*=} ;;
    --pack | --pack=* | --list | --help) chosen=python3 ;; # which need no torch
    esac
done

ask='import torch; build, gpus = torch.version, torch.cuda.device_count()
build = f"ROCm {build.hip}" if build.hip else f"CUDA {build.cuda}" if build.cuda else "CPUs"
print(gpus, f"torch {torch.__version__}, built for {build}, which sees {gpus} GPUs")'
candidates=(.venv/bin/python python3 python)
[ -z "${PYTHON-}" ] || candidates=("$PYTHON")
about=
for python in "${candidates[@]}"; do
    told=$("$python" -c "$ask" 2>/dev/null) && [[ $told =~ ^[0-9]+\ torch ]] || continue
    if [ -z "$about" ] || [ "${told%% *}" -gt 0 ]; then chosen=$python about=${told#* }; fi
    if [ "${told%% *}" -gt 0 ]; then break; fi
done
if [ -z "$chosen" ]; then
    echo "error: none of ${candidates[*]} has torch: install the build for this GPU (https://pytorch.org), or name another" \
        "Python, PYTHON=... scripts/gpu.sh" >&2
    exit 2
fi
[ -z "$about" ] || echo "$chosen has $about" >&2

# The packages of the steps, in an environment of their own that also has those of the chosen Python.
place=gpu-results/environment-$("$chosen" -c 'import sys; print(sys.executable, sys.version)' | cksum | cut -d " " -f 1)
if [ ! -e "$place/complete" ]; then
    "$chosen" -m venv --clear --system-site-packages "$place"
    # If the chosen one is itself one of a virtual environment, that option does not show its packages.
    folder='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$chosen" -c "$folder" >"$("$place/bin/python" -c "$folder")/machine.pth"
    if [ -n "$packed" ]; then
        "$place/bin/pip" install --quiet --no-index --no-deps --find-links "$packed" "$packed"/*.whl --editable .
    else
        "$place/bin/pip" install --quiet --constraint tests/constraints.txt --editable ".[gpu]"
    fi
    touch "$place/complete"
fi
exec "$place/bin/python" -m tools.gpu "$@"
