#!/usr/bin/env bash
# memcping, memccp, memccat, memcexist, memctouch, memcdump, memcrm, memcstat, memcflush: both
# protocols where the tool has both, over TCP and a Unix socket.
. "$(dirname "$0")/checks.sh" || exit 1

cd "$SCRATCH_DIR" || exit 1
printf 'one' >one
# Hardly compressible, with every byte value.
head -c 900000 /dev/urandom >large
: >empty

dumped() {
  memcdump | grep -qx one
}

walk() {
  local protocol=$1
  check "flush" memcflush $protocol
  check "ping" memcping
  check "copy" memccp $protocol --set one large empty
  refuse "add present" memccp $protocol --add one
  check "replace present" memccp $protocol --replace --flags=7 one
  check "cat" memccat $protocol one
  equal "cat" "$output" "one"
  check "cat with flags" memccat $protocol --flags one
  equal "cat with flags" "$output" "$(printf '7\none')"
  check "cat to a file" memccat $protocol --file=copy large
  check "large value" cmp copy large
  check "cat empty" memccat $protocol empty
  equal "cat empty" "$output" ""
  refuse "cat absent" memccat $protocol absent
  check "exist" memcexist $protocol one
  refuse "exist absent" memcexist $protocol absent
  check "touch" memctouch $protocol --expire=100 one
  refuse "touch absent" memctouch $protocol --expire=100 absent
  # memcached dumps only its cold items, and takes a moment to let a new one cool.
  eventually "dump" dumped
  check "rm" memcrm $protocol large
  refuse "rm absent" memcrm $protocol large
  refuse "replace absent" memccp $protocol --replace large
  check "add absent" memccp $protocol --add large
  check "stat" memcstat $protocol
  contains "stat" 'limit_maxbytes: [0-9]+'
  for what in settings items slabs sizes; do
    check "stat $what" memcstat $protocol $what
  done
  check "server version" memcstat $protocol --server-version
  contains "server version" '[0-9]+\.[0-9]+\.[0-9]+$'
  check "analyze" memcstat $protocol --analyze
  contains "analyze" 'Number of Servers Analyzed +: 1'
  check "latency" memcstat $protocol --analyze=latency --iterations=100
  check "flush again" memcflush $protocol
  refuse "flushed" memcexist $protocol large
}

before_expiry() {
  local protocol=$1 name
  for name in short touched lasting; do
    cp one "$name$protocol"
  done
  check "copy to expire" memccp $protocol --set --expire=2 "short$protocol"
  check "copy to last" memccp $protocol --set "touched$protocol" "lasting$protocol"
  check "touch to expire" memctouch $protocol --expire=2 "touched$protocol"
  check "exist before expiry" memcexist $protocol "short$protocol"
}

after_expiry() {
  local protocol=$1
  refuse "expired" memcexist $protocol "short$protocol"
  refuse "touched and expired" memcexist $protocol "touched$protocol"
  check "still there" memcexist $protocol "lasting$protocol"
}

everywhere() {
  local step=$1 protocol
  for MEMCACHED_SERVERS in $servers; do
    export MEMCACHED_SERVERS
    for protocol in "" --binary; do
      "$step" "$protocol"
    done
  done
}

everywhere walk
everywhere before_expiry
sleep 2.2
everywhere after_expiry
refuse "ping nobody" memcping --servers="$SERVER_HOST:1"
finish memctools "$(tools_version)"
