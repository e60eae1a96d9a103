#!/bin/busybox sh
# First program of a guest: loads the modules, makes the host's root the guest's, starts the agent.
# /config has RIG_PYTHON, RIG_AGENT and RIG_NODES; the kernel's command line gives RIG_NODE.
bb=/bin/busybox
fail() { echo "rig: $*"; $bb reboot -f; }

$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
$bb mount -t devtmpfs dev /dev
. /config
export RIG_NODE RIG_NODES
for module in /modules/*.ko; do $bb insmod "$module" || fail "insmod $module"; done

plan9=trans=virtio,version=9p2000.L,msize=512000
$bb mount -t 9p -o $plan9,ro,cache=loose root /lower || fail "mount of the host's root"
$bb mount -t tmpfs -o size=80% upper /upper
$bb mkdir /upper/files /upper/work
$bb mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /root \
  || fail "mount of the overlay"
$bb mkdir -p /root/share /root/proc /root/sys /root/dev /root/run
$bb mount -t 9p -o $plan9,cache=mmap share /root/share || fail "mount of the share"
for folder in proc sys dev; do $bb mount --move /$folder /root/$folder; done
$bb mkdir /root/dev/pts /root/dev/shm
$bb mount -t devpts devpts /root/dev/pts
$bb mount -t tmpfs shm /root/dev/shm
$bb mount -t tmpfs run /root/run
$bb ln -sfn /proc/self/fd /root/dev/fd
$bb ln -sfn fd/0 /root/dev/stdin
$bb ln -sfn fd/1 /root/dev/stdout
$bb ln -sfn fd/2 /root/dev/stderr
exec $bb switch_root /root "$RIG_PYTHON" -I -S "$RIG_AGENT"
