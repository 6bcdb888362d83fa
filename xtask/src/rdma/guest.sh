# Runs in the machine, with the host's programs: sets up soft-RoCE, runs the steps in order, and powers off.
#
# Step N is /steps/N.sh; its output goes to N.log, then its status to N.status. The file "up" marks the begin of the
# steps, "done" their end.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
# Soft-RoCE's completion queues are too short for what ofi_rxm makes by default, for 256 peers.
export FI_UNIVERSE_SIZE=64
ulimit -l unlimited
ulimit -c 0
ip link set lo up
ip link add v0 type veth peer name v1
ip addr add 10.77.0.1/24 dev v0
ip addr add 10.77.0.2/24 dev v1
# Room for a packet of 4096 bytes with its headers.
ip link set v0 up mtu 4200
ip link set v1 up mtu 4200
rdma link add rxe0 type rxe netdev v0
rdma link add rxe1 type rxe netdev v1
rdma link
# Soft-RoCE runs in kernel threads: programs that spin on its completions would keep it from running ...
for name in /proc/[0-9]*/comm; do
    case $(<"$name") in
        ksoftirqd* | kworker* | rxe* | ib_*)
            process=${name%/comm}
            chrt -f -p 1 "${process#/proc/}" 2>/dev/null
            ;;
    esac
done
# ... and each other from polling.
mount -t debugfs debugfs /sys/kernel/debug
for name in min_granularity wakeup_granularity latency; do
    echo 200000 >/sys/kernel/debug/sched/${name}_ns
done
echo "up after $(cut -d' ' -f1 /proc/uptime) s"
touch /steps/up
n=0
while [ -e /steps/$n.sh ]; do
    /bin/bash /steps/$n.sh </dev/null >/steps/$n.log 2>&1
    status=$?
    echo "step $n: status $status after $(cut -d' ' -f1 /proc/uptime) s"
    echo $status >/steps/status
    mv /steps/status /steps/$n.status
    n=$((n + 1))
done
touch /steps/done
echo 1 >/proc/sys/kernel/sysrq
echo o >/proc/sysrq-trigger
sleep 60
