#!/bin/bash
# Makes the disk of a guest with systemd, as a site has it before a playbook is run: packages installed, nothing configured. Started by
# debian.py in namespaces of its own.
# Arguments: the file to make, the archive of the root file system, the repositories of the site's packages and of what Muster's need,
# the directory of Muster's, the small guest's disk (whose kernel modules it has), a directory of files to add, packages.
set -euo pipefail
file=$1 root=$2 site=$3 needed=$4 muster=$5 disk=$6 added=$7
shift 7

scratch=$file.tmp
mkdir "$scratch"
mount -t tmpfs tmpfs "$scratch" # no disk waits for each of dpkg's fsyncs
mkdir "$scratch/root"
tar --extract --zstd --xattrs --xattrs-include='*' --file "$root" --directory "$scratch/root"
cd "$scratch/root"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount --bind /dev dev
mkdir run/{site,needed,muster}
mount --bind -o ro "$site" run/site
mount --bind -o ro "$needed" run/needed
cp "$muster"/*.deb run/muster/
(cd run/muster && dpkg-scanpackages --multiversion . >Packages 2>/dev/null)
printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d # no services start here
chmod 755 usr/sbin/policy-rc.d
for repository in site needed muster; do
    echo "deb [trusted=yes] file:/run/$repository ./"
done >etc/apt/sources.list
export DEBIAN_FRONTEND=noninteractive
chroot . apt-get -qq update
chroot . apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install "$@"
chroot . apt-get -qq clean
rm -rf usr/sbin/policy-rc.d var/lib/apt/lists/*
: >etc/apt/sources.list
: >etc/machine-id
umount --recursive run
umount dev proc
debugfs -R "rdump /usr/lib/modules $PWD/usr/lib" "$disk" 2>/dev/null
cp -a "$added/." .
chown -R 0:0 root/.ssh
mke2fs -q -t ext4 -L guest -m 0 -d . "$file" 6G
cd /
umount "$scratch"
rmdir "$scratch"
