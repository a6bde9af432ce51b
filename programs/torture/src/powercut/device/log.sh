# A device of which the kernel logs every write, flush and discard: /dev/mapper/cut, over /tmp/data.img, with its log in /tmp/log.img.
begin_log() {
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
}

end_log() {
	dmsetup remove --noudevsync --noudevrules --retry cut
	rm -f /dev/mapper/cut
	losetup -d "$data"
	losetup -d "$log"
}
