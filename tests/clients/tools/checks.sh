# Shared by the tools' scripts: the servers' addresses and counted assertions.
set -u -o pipefail

address="$SERVER_HOST:$SERVER_PORT"
# Both transports, unless only one is checked.
servers=${SERVER_ONLY:-"$address $SERVER_SOCKET"}
passed=0

fail() {
  echo "FAILED after $passed checks: $*" >&2
  exit 1
}

# check WHAT COMMAND...: the command succeeds; its output is kept in $output.
check() {
  local what=$1
  shift
  output=$("$@" 2>&1) || fail "$what: '$*' ended with $?: $output"
  passed=$((passed + 1))
}

# refuse WHAT COMMAND...: the command fails, but not by a signal.
refuse() {
  local what=$1 status=0
  shift
  output=$("$@" 2>&1) || status=$?
  [ "$status" -gt 0 ] && [ "$status" -lt 128 ] || fail "$what: '$*' ended with $status: $output"
  passed=$((passed + 1))
}

# equal WHAT ACTUAL EXPECTED
equal() {
  [ "$2" = "$3" ] || fail "$1: expected '$3', got '$2'"
  passed=$((passed + 1))
}

# contains WHAT TEXT: $output has a line that matches the expression.
contains() {
  grep -Eq -- "$2" <<<"$output" || fail "$1: no '$2' in: $output"
  passed=$((passed + 1))
}

# eventually WHAT COMMAND...: polls until the command succeeds, for effects of background threads.
eventually() {
  local what=$1 tries
  shift
  for tries in $(seq 100); do
    if "$@"; then
      passed=$((passed + 1))
      return
    fi
    sleep 0.05
  done
  fail "$what: '$*' did not come true"
}

# finish NAME VERSION
finish() {
  echo "$1 $2: $passed checks passed"
}

# The library's version, which is that of the tools.
tools_version() {
  memcping --version 2>&1 | sed -nE 's/.*libmemcached v([0-9.]+).*/\1/p' | head -n 1
}
