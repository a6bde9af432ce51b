#!/bin/busybox sh
# First process of a QEMU guest of the lab. When the kernel's command line names a root file system, it
# goes there, to the first process that is named there, with the arguments it was given. Without one,
# and as /sbin/init of the lab's bootable disk, it runs the script that QEMU hands in as a firmware file
# and writes to the console that it begins, and with which status it ended.
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

root= type=ext4 flags= init=/sbin/init
for word in $(cat /proc/cmdline); do
	case $word in
	root=*) root=${word#root=} ;;
	rootfstype=*) type=${word#rootfstype=} ;;
	rootflags=*) flags=${word#rootflags=} ;;
	init=*) init=${word#init=} ;;
	--) break ;;
	esac
done
if [ -n "$root" ] && [ -d /disk ]; then
	mount -t "$type" ${flags:+-o "ro,$flags"} "$root" /disk &&
		mount --move /proc /disk/proc &&
		mount --move /sys /disk/sys &&
		mount --move /dev /disk/dev &&
		exec switch_root /disk "$init" "$@"
	echo "the root file system on $root cannot be used"
	poweroff -f
fi

cat /sys/firmware/qemu_fw_cfg/by_name/opt/vringd/script/raw >/tmp/script
echo vringd-lab-up
sh -eu /tmp/script
status=$?
sync
[ -n "$root" ] && mount -o remount,ro /
echo "vringd-lab-status: $status"
poweroff -f
