#!/bin/sh
# First process of a User Mode Linux guest of the lab. The kernel's command line gives `job`, a
# directory of the host: `script` is run from there, its status is written to `exit`.
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /mnt
exec </dev/null >/dev/console 2>&1

for module in "/lab/modules/$(uname -r)"/*.ko; do
	[ -e "$module" ] && busybox insmod "$module"
done
mount -t hostfs none /lab/job -o "hostfs=$job"

export job=/lab/job HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd /tmp
/bin/sh -eu /lab/job/script
echo $? >/lab/job/exit.new
mv /lab/job/exit.new /lab/job/exit
busybox poweroff -f
