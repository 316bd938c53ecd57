#!/bin/bash
# Makes what a guest boots from: Debian's kernel (vmlinux, which QEMU starts without decompressing it), an initrd with the modules that
# find a disk, and the disk: packages, the kernel's modules and this directory's init. Started by images.py in namespaces of its own.
# Arguments: the directory to make, a sources.list, the suite, packages between commas.
set -euo pipefail
directory=$1 sources=$2 suite=$3 packages=$4
files=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/files

mkdir -p "$directory/scratch"
mount -t tmpfs tmpfs "$directory/scratch" # no disk waits for each of dpkg's fsyncs
scratch=$directory/scratch
root=$scratch/root
# The kernel's package is unpacked only: what it does when it is configured is for a machine with a boot loader.
# shellcheck disable=SC2016 # the hooks are expanded by the shell that mmdebstrap starts for them
TMPDIR=$scratch mmdebstrap --quiet --mode=root --variant=minbase --format=directory --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --include="$packages" \
    --customize-hook='mkdir "$1/kernel" && chroot "$1" sh -c "cd /kernel && apt-cache depends linux-image-amd64 |
        sed -n \"s/.*Depends: //p\" | xargs apt-get -qq -o APT::Sandbox::User=root download"' \
    "$suite" "$root" - <"$sources"
: >"$root/etc/apt/sources.list"
mkdir "$scratch/kernel"
# Without what no guest has: most of all drivers.
dpkg-deb --fsys-tarfile "$root"/kernel/*.deb | tar --extract --directory "$scratch/kernel" --wildcards \
    --exclude='*/kernel/sound' --exclude='*/kernel/drivers/gpu' --exclude='*/kernel/drivers/media' --exclude='*/drivers/staging' \
    --exclude='*/kernel/drivers/net/ethernet' --exclude='*/kernel/drivers/net/wireless' --exclude='*/drivers/scsi' \
    --exclude='*/kernel/drivers/iio' --exclude='*/kernel/drivers/usb' --exclude='*/kernel/drivers/isdn' \
    ./boot ./lib/modules
rm -r "$root/kernel"
mkdir -p "$root/usr/lib/modules"
mv "$scratch"/kernel/lib/modules/* "$root/usr/lib/modules/"
kernel=$(basename "$root"/usr/lib/modules/*)
chroot "$root" depmod "$kernel"
"$files/../vmlinux.py" "$scratch/kernel/boot/vmlinuz-$kernel" "$directory/vmlinux"

# The initrd: busybox, and modules in the order in which they are to be loaded.
mkdir -p "$scratch"/initrd/{bin,dev,proc,root,modules}
cp "$root/bin/busybox" "$scratch/initrd/bin/"
install -m 755 "$files/initrd_init" "$scratch/initrd/init"
chroot "$root" modprobe --set-version "$kernel" --show-depends --all virtio_pci virtio_blk ext4 crc32c_generic |
    sed -n 's/^insmod //p' | awk '!seen[$1]++ {print $1}' >"$scratch/modules"
while read -r module; do
    cp "$root$module" "$scratch/initrd/modules/"
    basename "$module" >>"$scratch/initrd/modules/order"
done <"$scratch/modules"
(cd "$scratch/initrd" && find . | cpio --quiet --create --format=newc) >"$directory/initrd"

install -m 755 "$files/init" "$root/usr/lib/guest-init"
[[ -e $root/sbin/init ]] || ln -s /usr/lib/guest-init "$root/sbin/init"
[[ -e $root/sbin/reboot ]] || install -m 755 "$files/reboot" "$root/sbin/reboot"
# After all directories of the guest's own libraries.
echo /opt/cargo/lib >"$root/etc/ld.so.conf.d/zz-cargo.conf"
mkdir -p "$root/opt/cargo"
mke2fs -q -t ext4 -L guest -m 0 -d "$root" "$directory/root.ext4" 4G
umount "$scratch"
rmdir "$scratch"
