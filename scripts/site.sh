#!/usr/bin/env bash
# Build the site into a folder that any host serves: the guides, and the preview, which renders projects in the browser.
#
#   scripts/site.sh DEST        then, to look at it: python3 -m http.server --directory DEST
#
# --version TAG: preview a released version, instead of the template as it is here.
# --report FILE: show the report that `ddp-template check --html FILE` wrote, too.
# It needs npm (Node.js), which fetches the packages that the site ships, such as Pyodide.
set -euo pipefail
destination=$(realpath -m "${1:?give the folder to write to}")
shift
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --version) options+=(--version "${2:?give a tag, such as v1.1.0}") ;;
    --report) options+=(--report "$(realpath -m "${2:?give the file of the report}")") ;;
    *) echo "site.sh: $1 is no option: --version and --report are" >&2 && exit 2 ;;
    esac
    shift 2
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -e .venv ] || python3 -m venv .venv
.venv/bin/pip install --quiet --constraint constraints.txt --constraint tests/constraints.txt --editable ".[site]"
exec .venv/bin/python -m website.build "$destination" "${options[@]}"
