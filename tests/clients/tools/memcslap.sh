#!/usr/bin/env bash
# memcslap: every kind of load, over TCP, UDP and a Unix socket.
. "$(dirname "$0")/checks.sh" || exit 1

load() {
  local what=$1
  shift
  check "$what" timeout 60 memcslap "$@" --execute-number=2000 --initial-load=2000
  contains "$what ran to its end" 'Time total: +[0-9.]+ seconds'
  contains "$what did all" "Time to (set|get|mget) +$count keys by"
}

for protocol in "" --binary; do
  for server in $servers; do
    for test in set get mget; do
      count=2000
      load "$test $protocol $server" --servers="$server" --test="$test" $protocol
    done
    count=8000
    load "4 threads $protocol $server" --servers="$server" --test=get --concurrency=4 $protocol
    count=2000
    load "non-blocking $protocol $server" --servers="$server" --test=set --non-blocking $protocol
    load "noreply $protocol $server" --servers="$server" --test=set --noreply $protocol
  done
  # Stores only: the library reads no answers over UDP.
  if [[ " $servers " = *" $address "* ]]; then
    load "udp $protocol" --servers="$address" --test=set --udp $protocol
  fi
done

counted=${servers%% *}
check "items after the load" memcstat --servers="$counted"
contains "items after the load" 'curr_items: [0-9]{4,}'
check "flush" memcslap --servers="$counted" --flush --test=set --execute-number=1 --initial-load=1
check "items after the flush" memcstat --servers="$counted"
contains "sets were counted" 'cmd_set: [0-9]{5,}'
finish memcslap "$(tools_version)"
