#!/bin/sh
# First process of a guest. It gets the directory that host and guest share, and, if the guest is to
# run more than one script, the device on which host and guest talk. /proc, /run and the share
# are mounted.
job=$1 line=${2-}
export job HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t sysfs sysfs /sys
grep -q ' /dev ' /proc/mounts || mount -t devtmpfs devtmpfs /dev
exec </dev/null >/dev/console 2>&1
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /mnt

for module in "$job"/modules/*.ko; do
	[ -e "$module" ] && { busybox insmod "$module" || insmod "$module"; }
done
cd /tmp

if [ -n "$line" ]; then
	exec 3<>"$line"
	online=$(cat /sys/devices/system/cpu/online 2>/dev/null || echo 0)
	echo "ready $(uname -r) $online" >&3
	while read -r verb number <&3; do
		case $verb in
		run)
			sh -eu "$job/$number.sh" >"$job/$number.out" 2>"$job/$number.err" 3>&-
			echo "done $number $?" >&3
			;;
		end)
			break
			;;
		esac
	done
else
	sh -eu "$job/script"
	echo $? >"$job/exit.new"
	mv "$job/exit.new" "$job/exit"
fi
# Where devices are removed at the end, as under User Mode Linux, 9p waits until nobody has it mounted.
umount -a -l -t 9p 2>/dev/null
busybox poweroff -f || poweroff -f || echo o >/proc/sysrq-trigger
