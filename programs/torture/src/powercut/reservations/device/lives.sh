# Lives of a file on a file system of whose device the kernel logs every write, flush and discard, and a look at what cuts leave of it.
#
# $to: directory that gets what has become of it (lived.json, looked.json). $program: this one. $options: more for it.
rm -f /tmp/data.img /tmp/before.img /tmp/log.img
truncate -s 4M /tmp/data.img
mke2fs -q -t ext4 -b 1024 -J size=1 -m 0 /tmp/data.img
cp /tmp/data.img /tmp/before.img
truncate -s 256M /tmp/log.img
begin_log
mkdir -p /tmp/file /tmp/look
mount -t ext4 /dev/mapper/cut /tmp/file
# shellcheck disable=SC2086 # several words
"$program" powercut-reservations-life --device cut --path /tmp/file/kept --lived "$to/lived.json" $options
umount /tmp/file
end_log
cp /tmp/before.img /tmp/scratch.img
scratch=$(losetup --find --show /tmp/scratch.img)
"$program" powercut-reservations-look --before /tmp/before.img --log /tmp/log.img --lived "$to/lived.json" \
	--scratch "$scratch" --mount /tmp/look --looked "$to/looked.json"
losetup -d "$scratch"
