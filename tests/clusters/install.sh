#!/bin/sh
# Install the real launchers that the cluster tests drive: Slurm, Open MPI, MPICH.
#
# Nothing is installed without root or apt-get: the tests then skip and say why.
# A failing apt-get, on the other hand, is an error: the exit code is not zero.
set -eu

PACKAGES="slurmctld slurmd slurm-client munge openmpi-bin mpich"
POLICY=/usr/sbin/policy-rc.d

installed() {
    # shellcheck disable=SC2086  # one argument for each package
    states=$(dpkg-query --show --showformat '${db:Status-Status}\n' $PACKAGES \
        2>/dev/null) && ! printf '%s\n' "$states" | grep -qvx installed
}

say() {
    printf 'tests/clusters: %s\n' "$1"
}

if ! command -v apt-get >/dev/null; then
    say "no apt-get here: tests that need Slurm or MPI will be skipped"
    exit 0
fi
if installed; then
    say "all packages are installed already"
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    say "not root: tests that need Slurm or MPI will be skipped"
    exit 0
fi

# The packages would start munged, slurmctld and slurmd: the tests run their own.
if [ ! -e "$POLICY" ]; then
    trap 'rm -f "$POLICY"' EXIT
    trap 'exit 1' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$POLICY"
    chmod 755 "$POLICY"
fi

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086
if ! { apt-get update -q && apt-get install -q -y --no-install-recommends $PACKAGES; } \
    >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    say "apt-get failed, see above" >&2
    exit 1
fi
rm -f "$log"
say "installed $PACKAGES"
