#!/bin/busybox sh
# The first program of the machine: loads modules, mounts the host's root below a file system in memory, and continues there.
b=/bin/busybox
options=trans=virtio,version=9p2000.L,msize=1048576
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do
    $b insmod "$module" || echo "$module is not loaded"
done
$b mount -t 9p -o ro,cache=loose,$options root /host || echo "there is no root"
$b mount -t tmpfs tmpfs /above
$b mkdir /above/files /above/work
$b mount -t overlay -o lowerdir=/host,upperdir=/above/files,workdir=/above/work overlay /root
for folder in proc sys dev; do
    $b mkdir -p /root/$folder
    $b mount -o move /$folder /root/$folder
done
$b ln -s /proc/self/fd /root/dev/fd
$b ln -s /proc/self/fd/0 /root/dev/stdin
$b ln -s /proc/self/fd/1 /root/dev/stdout
$b ln -s /proc/self/fd/2 /root/dev/stderr
$b mkdir -p /root/dev/pts /root/dev/shm /root/run /root/steps
$b mount -t devpts devpts /root/dev/pts
$b mount -t tmpfs tmpfs /root/dev/shm
$b mount -t tmpfs tmpfs /root/run
$b mount -t 9p -o $options steps /root/steps || echo "there are no steps"
exec $b chroot /root /bin/bash /steps/guest.sh
