#!/bin/bash
# Makes what a machine of a rack has beyond the common root: packages, installed by apt from a repository. Started by images.py
# in namespaces of its own.
# Arguments: the file to make, the root, the repository, packages.
set -euo pipefail
file=$1 root=$2 repository=$3
shift 3

scratch=$file.tmp
mkdir "$scratch"
mount -t tmpfs tmpfs "$scratch" # no disk waits for each of dpkg's fsyncs
mkdir "$scratch"/{lower,upper,work,merged}
tar --extract --zstd --xattrs --xattrs-include='*' --file "$root" --directory "$scratch/lower"
mount -t overlay -o "lowerdir=$scratch/lower,upperdir=$scratch/upper,workdir=$scratch/work" overlay "$scratch/merged"
cd "$scratch/merged"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount --bind /dev dev
mkdir run/repository
mount --bind -o ro "$repository" run/repository
printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d # no services start here
chmod 755 usr/sbin/policy-rc.d
echo 'deb [trusted=yes] file:/run/repository ./' >etc/apt/sources.list
export DEBIAN_FRONTEND=noninteractive
chroot . apt-get -qq update
chroot . apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install "$@"
chroot . apt-get -qq clean
rm -rf usr/sbin/policy-rc.d var/lib/apt/lists/*
: >etc/apt/sources.list
cd "$scratch"
umount --recursive merged
tar --create --zstd --xattrs --xattrs-include='trusted.overlay.*' --file "$file" --directory upper .
cd /
umount "$scratch"
rmdir "$scratch"
