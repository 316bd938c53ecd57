#!/bin/bash
# Makes the root file system in which packages are built for a suite of Debian. Started by images.py in namespaces of its own.
# Arguments: the directory to make, a sources.list, the suite, the packages' debian/control.
set -euo pipefail
directory=$1 sources=$2 suite=$3
export CONTROL=$4

# shellcheck disable=SC2016 # the hooks are expanded by the shell that mmdebstrap starts for them
mmdebstrap --quiet --mode=root --variant=minbase --format=directory --dpkgopt=force-unsafe-io \
    --customize-hook='install -D "$CONTROL" "$1/root/debian/control"' \
    --customize-hook='chroot "$1" apt-get -qq -y --no-install-recommends -P nocheck build-dep /root' \
    "$suite" "$directory" - <"$sources"
