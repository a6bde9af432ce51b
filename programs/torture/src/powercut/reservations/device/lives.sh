# Lives of a file on a file system of whose device the kernel logs every write, flush and discard, and a look at what cuts leave of it.
#
# $to: directory that gets what has become of it (lived.json, looked.json). $program: this one. $options: more for it.
rm -f /tmp/data.img /tmp/before.img /tmp/log.img
truncate -s 4M /tmp/data.img
mke2fs -q -t ext4 -b 1024 -J size=1 -m 0 /tmp/data.img
cp /tmp/data.img /tmp/before.img
truncate -s 256M /tmp/log.img
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
mkdir -p /tmp/file /tmp/look
mount -t ext4 /dev/mapper/cut /tmp/file
# shellcheck disable=SC2086 # several words
"$program" powercut-reservations-life --device cut --path /tmp/file/kept --lived "$to/lived.json" $options
umount /tmp/file
dmsetup remove --noudevsync --noudevrules --retry cut
rm -f /dev/mapper/cut
losetup -d "$data"
losetup -d "$log"
cp /tmp/before.img /tmp/scratch.img
scratch=$(losetup --find --show /tmp/scratch.img)
"$program" powercut-reservations-look --before /tmp/before.img --log /tmp/log.img --lived "$to/lived.json" \
	--scratch "$scratch" --mount /tmp/look --looked "$to/looked.json"
losetup -d "$scratch"
