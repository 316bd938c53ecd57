#!/bin/bash
# Runs build-deb in another root file system. Started by build-in in namespaces of its own, so that its processes and mounts end
# with it.
# Arguments: a directory with the sources in source/, the root, the directory for the packages, ccache's, SOURCE_DATE_EPOCH.
set -euo pipefail
scratch=$1 lower=$2 output=$3 ccache=$4 epoch=$5

mkdir "$scratch"/{upper,work,root}
mount -t overlay -o "lowerdir=$lower,upperdir=$scratch/upper,workdir=$scratch/work,volatile" overlay "$scratch/root"
cd "$scratch/root"
mkdir -p muster/{source,packages,ccache}
mount -t proc proc proc
mount --rbind /dev dev
mount --bind "$scratch/source" muster/source
mount --bind "$output" muster/packages
mount --bind "$ccache" muster/ccache
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CCACHE_DIR=/muster/ccache SOURCE_DATE_EPOCH="$epoch" \
    chroot . /muster/source/packaging/build-deb --output /muster/packages
