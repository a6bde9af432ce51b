# The first process of a Ceph cluster of one monitor and one OSD, in namespaces of its own (users, mounts, processes).
#
# $root is a root file system with Ceph's programs, of which nothing is changed, and $place the cluster's directory, /ceph in there. It takes
# orders, each the path of a script; what that says and how it ends is written beside it. With the last order it ends, and the kernel ends
# all that it has started.
set -eu
mount --bind "$place" "$root/ceph"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
exec chroot "$root" bash -eu -c '
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C CEPH_CONF=/ceph/server.conf
cd /ceph

start() {
	setsid "$@" </dev/null >>"$1.log" 2>&1 &
	echo $! >"$1.pid"
}
start_monitor() { start ceph-mon -i a -f; }
start_osd() { start ceph-osd -i 0 -f; }
# One that is asked to end tells the monitor, and waits for its answer.
stop() { kill -9 "$(cat "$1.pid")"; }
export -f start start_monitor start_osd stop

mkdir mon osd
key() { ceph-authtool keyring "$@"; }
key --create-keyring --gen-key -n mon. --cap mon "allow *"
key --gen-key -n client.admin --cap mon "allow *" --cap osd "allow *" --cap mgr "allow *"
key --gen-key -n osd.0 --cap mon "allow profile osd" --cap mgr "allow profile osd" --cap osd "allow *"
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" monmap
ceph-mon --mkfs -i a --monmap monmap --keyring keyring
# An OSD that is being made asks the monitor otherwise, and waits.
ceph-osd -i 0 --mkfs --no-mon-config --osd-uuid "$osd"
start_monitor
# What asks a program of the cluster waits for it, and would for one that has ended.
while_runs() {
	local program asking ended
	program=$(cat "$1.pid")
	shift
	kill -0 "$program"
	"$@" &
	asking=$!
	wait -n -p ended "$asking" "$program"
	[ "$ended" = "$asking" ]
}
while_runs ceph-mon ceph --connect-timeout 30 osd new "$osd" 0
start_osd
while_runs ceph-mon ceph osd pool create rbd 8 8 replicated
while_runs ceph-osd rbd pool init rbd
touch ready
while read -r script; do
	status=0
	bash -eu "$script" >"$script.said" 2>&1 </dev/null || status=$?
	echo "$status" >"$script.new"
	mv "$script.new" "$script.status"
done
'
