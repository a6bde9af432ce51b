# One life of a volume on a device of which the kernel logs every write, flush and discard.
#
# $life: directory with the device's contents before (data.img) and the load (before.json); gets the load's tape (tape.json), the
# kernel's log (log.img) and the device's contents at the end (after.img). $program: this one. $options: more for it.
cp "$life/data.img" /tmp/data.img
rm -f /tmp/log.img
truncate -s 384M /tmp/log.img
begin_log
# shellcheck disable=SC2086 # several words
"$program" powercut-life --device cut --before "$life/before.json" --tape "$life/tape.json" $options
end_log
cp /tmp/data.img "$life/after.img"
cp /tmp/log.img "$life/log.img"
