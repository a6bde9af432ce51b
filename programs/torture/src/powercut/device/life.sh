# One life of a volume on a device of which the kernel logs every write, flush and discard.
#
# $life: directory with the device's contents before (data.img) and the load (before.json); gets the load's tape (tape.json), the
# kernel's log (log.img) and the device's contents at the end (after.img). $program: this one. $options: more for it.
cp "$life/data.img" /tmp/data.img
rm -f /tmp/log.img
truncate -s 384M /tmp/log.img
data=$(losetup --find --show /tmp/data.img)
log=$(losetup --find --show /tmp/log.img)
# Nobody here handles events of devices, and makes their names.
dmsetup create cut --noudevsync --noudevrules --table "0 $(blockdev --getsz "$data") log-writes $data $log"
kernel_name=$(dmsetup info --columns --noheadings -o blkdevname cut)
[ -e /dev/mapper/cut ] || ln -s "/dev/$kernel_name" /dev/mapper/cut
cache=$(cat "/sys/block/$kernel_name/queue/write_cache")
[ "$cache" = "write back" ] || {
	# A device without a volatile cache is sent no flush: all would be lost that was not promised otherwise.
	echo "the device below has a cache of the kind '$cache'" >&2
	exit 1
}
# shellcheck disable=SC2086 # several words
"$program" powercut-life --device cut --before "$life/before.json" --tape "$life/tape.json" $options
dmsetup remove --noudevsync --noudevrules --retry cut
rm -f /dev/mapper/cut
losetup -d "$data"
losetup -d "$log"
cp /tmp/data.img "$life/after.img"
cp /tmp/log.img "$life/log.img"
