#!/bin/sh
# Install the real programs that the tests drive: Slurm, Open MPI, MPICH, ip, nft, FUSE, and a browser for the
# reports.
#
# Nothing is installed without root or apt-get: the tests then skip and say why.
# A failing apt-get, on the other hand, is an error: the exit code is not zero.
set -eu

PACKAGES="slurmctld slurmd slurm-client munge openmpi-bin mpich iproute2 nftables fuse3"
POLICY=/usr/sbin/policy-rc.d

installed() {
    # shellcheck disable=SC2086  # one argument for each package
    states=$(dpkg-query --show --showformat '${db:Status-Status}\n' $PACKAGES \
        2>/dev/null) && ! printf '%s\n' "$states" | grep -qvx installed
}

has_browser() {
    command -v chromium >/dev/null || command -v google-chrome >/dev/null
}

say() {
    printf 'tests/clusters: %s\n' "$1"
}

if ! command -v apt-get >/dev/null; then
    say "no apt-get here: tests that need Slurm, MPI or a browser will be skipped"
    exit 0
fi
if installed && has_browser; then
    say "all packages are installed already"
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    say "not root: tests that need Slurm, MPI or a browser will be skipped"
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
# Debian has chromium; Ubuntu only in a snap, but the images of its CI bring Chrome.
want_browser() {
    if ! has_browser && apt-cache show chromium >/dev/null 2>&1; then
        PACKAGES="$PACKAGES chromium"
    fi
}
# shellcheck disable=SC2086
if ! { apt-get update -q && want_browser && apt-get install -q -y --no-install-recommends $PACKAGES; } \
    >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    say "apt-get failed, see above" >&2
    exit 1
fi
rm -f "$log"
say "installed $PACKAGES"
