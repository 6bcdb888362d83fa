#!/usr/bin/env bash
# memccapable: libmemcached's own test of a server, 27 cases for each of the two protocols.
. "$(dirname "$0")/checks.sh" || exit 1

# Since memcached ignores words after a key, and fabcached as well, these two cases
# no longer get the error that they expect for `delete a b`.
outdated='ascii delete|ascii delete noreply'

# Unbuffered, or its messages come before the cases that they follow.
output=$(stdbuf -o0 memccapable -h "$SERVER_HOST" -p "$SERVER_PORT" -t 10 2>&1)
# The tool's message may break a failed case's line.
failed=$(grep -E '^(ascii|binary) ' <<<"$output" | grep -vF '[pass]' | cut -c 1-40 | sed 's/ *$//')
passed=$(grep -Ec '^(ascii|binary) .*\[pass\]' <<<"$output")

if [ "$SERVER_BEHAVIOUR" != 1.6.18 ]; then
  unexpected=$(grep -vxE "$outdated" <<<"$failed" | grep .)
  [ -z "$unexpected" ] || fail "$unexpected"
  [ $((passed + $(grep -c . <<<"$failed"))) -eq 54 ] || fail "not all of 54 cases ran: $output"
else
  [ "$passed" -eq 54 ] || fail "$passed of 54 cases passed; failed: ${failed:-none}
$output"
fi
finish memccapable "$(tools_version)"
