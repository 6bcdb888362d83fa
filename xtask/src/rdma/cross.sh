# Makes packets between rxe0 (10.77.0.1) and rxe1 (10.77.0.2) leave by one interface and arrive at the other, although
# both addresses are local.
[ -e /run/crosses ] && exit 0
set -e
for interface in all v0 v1; do
    echo 1 >/proc/sys/net/ipv4/conf/$interface/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$interface/rp_filter
done
# The local table is consulted for incoming packets after these rules, which are for outgoing ones.
ip rule add pref 100 lookup local
ip rule del pref 0
ip rule add pref 10 to 10.77.0.2 iif lo lookup 101
ip route add 10.77.0.2 dev v0 src 10.77.0.1 table 101
ip rule add pref 11 to 10.77.0.1 iif lo lookup 102
ip route add 10.77.0.1 dev v1 src 10.77.0.2 table 102
touch /run/crosses
