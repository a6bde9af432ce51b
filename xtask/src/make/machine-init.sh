#!/bin/busybox sh
# First process of a QEMU guest of the lab, both in the initial file system and, when the kernel's
# command line names a root, on that root. It runs the script that QEMU hands in as a firmware
# file and writes its status to the console.
export PATH=/bin:/sbin HOME=/root
/bin/busybox mkdir -p /bin /sbin /root /tmp
/bin/busybox --install -s /bin
[ -d /proc/self ] || mount -t proc proc /proc
[ -d /sys/kernel ] || mount -t sysfs sysfs /sys
[ -e /dev/vda ] || mount -t devtmpfs devtmpfs /dev
exec </dev/null >/dev/console 2>&1

for module in /modules/*.ko; do
	[ -e "$module" ] && insmod "$module"
done

root=$(sed -n 's/.*root=\([^ ]*\).*/\1/p' /proc/cmdline)
if [ -n "$root" ] && [ -d /disk ]; then
	mount -t ext4 "$root" /disk &&
		mount --move /proc /disk/proc &&
		mount --move /sys /disk/sys &&
		mount --move /dev /disk/dev &&
		exec switch_root /disk /sbin/init
	echo "the root file system on $root cannot be used"
	poweroff -f
fi

cat /sys/firmware/qemu_fw_cfg/by_name/opt/vringd/script/raw >/tmp/script
sh -eu /tmp/script
status=$?
sync
[ -n "$root" ] && mount -o remount,ro /
echo "vringd-lab-status: $status"
poweroff -f
