# check.sh SERVER CLIENT: checks that soft-RoCE works between two devices, and measures it without our code.
set -eu
server=$1 client=$2
provider='verbs;ofi_rxm'

sent() { cat /sys/class/net/v1/statistics/tx_packets; }

listens() {
    port=$(printf ':%04X' "$1")
    for _ in $(seq 100); do
        if grep -qi "$port .* 0A " /proc/net/tcp /proc/net/tcp6; then return; fi
        sleep 0.1
    done
    echo "no process listens at port $1"
    return 1
}

pair() { # PORT SERVER'S COMMAND -- CLIENT'S COMMAND
    port=$1
    shift
    words=()
    while [ "$1" != -- ]; do
        words+=("$1")
        shift
    done
    shift
    timeout 40 "${words[@]}" >/run/server 2>&1 &
    listens "$port"
    timeout 40 "$@" || { status=$?; echo "the server:"; cat /run/server; return $status; }
    wait $! || { status=$?; echo "the server:"; cat /run/server; return $status; }
}

before=$(sent)
# The second address of a device is that of IPv4.
pair 18515 ibv_rc_pingpong -d "$server" -g 1 -n 100 -- ibv_rc_pingpong -d "$client" -g 1 -n 100 10.77.0.1 | grep usec
for bytes in 64 4096; do
    pair 47592 fi_pingpong -p "$provider" -d "$server" -e rdm -I 100 -S $bytes -- \
        fi_pingpong -p "$provider" -d "$client" -e rdm -I 100 -S $bytes 10.77.0.1 | tail -n +$((bytes == 64 ? 1 : 2))
done
packets=$(($(sent) - before))
echo "packets between the interfaces: $packets"
if [ "$server" = "$client" ]; then [ $packets -lt 100 ]; else [ $packets -gt 600 ]; fi
