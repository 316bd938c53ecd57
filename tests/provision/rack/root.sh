#!/bin/bash
# Makes the root file system that all machines of a rack have: Debian with systemd, OpenSSH, Python and apt, and one ordinary
# user. Started by images.py in namespaces of its own.
# Arguments: the file to make, a sources.list, the suite, packages between commas.
set -euo pipefail
file=$1 sources=$2 suite=$3 packages=$4

mkdir "$file.tmp"
mount -t tmpfs tmpfs "$file.tmp" # no disk waits for each of dpkg's fsyncs
# shellcheck disable=SC2016 # the hooks are expanded by the shell that mmdebstrap starts for them
TMPDIR=$file.tmp mmdebstrap --quiet --mode=root --variant=minbase --format=tar --include="$packages" \
    --customize-hook='chroot "$1" systemctl --quiet enable systemd-networkd' \
    --customize-hook='chroot "$1" useradd --uid 20001 --shell /bin/bash trainer' \
    --customize-hook=': >"$1/etc/apt/sources.list"' \
    "$suite" - - <"$sources" | zstd --quiet -3 -T0 -o "$file"
umount "$file.tmp"
rmdir "$file.tmp"
