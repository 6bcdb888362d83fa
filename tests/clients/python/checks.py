"""Shared by the Python client programs: the servers' addresses and counted assertions."""

import os
import signal
import sys
import time

HOST = os.environ["SERVER_HOST"]
PORT = int(os.environ["SERVER_PORT"])
ADDRESS = f"{HOST}:{PORT}"
SOCKET = os.environ["SERVER_SOCKET"]
SCRATCH = os.environ["SCRATCH_DIR"]
# The memcached release whose answers are expected where releases differ.
BEHAVIOUR = tuple(int(part) for part in os.environ["SERVER_BEHAVIOUR"].split("."))

# Both are below the 1 MiB item limit; the larger one leaves room only for the item's overhead.
LARGE = bytes(range(256)) * 3900
NEAR_LIMIT = b"n" * (1024 * 1024 - 1024)
# One byte more than a whole item may take.
TOO_LARGE = b"t" * (1024 * 1024 + 1)
BINARY = bytes(range(256))
# Two seconds is the shortest time to live that cannot end at the very next tick of the clock.
SHORT_TTL_S = 2

_passed = 0
_context = ""


def context(name):
    """Names the mode (protocol, transport) that the next checks run in."""
    global _context
    _context = f"{name}: " if name else ""


def equal(what, actual, expected):
    global _passed
    if actual != expected or type(actual) is not type(expected):
        _fail(f"{what}: expected {_brief(expected)}, got {_brief(actual)}")
    _passed += 1


def true(what, condition):
    global _passed
    if not condition:
        _fail(f"{what}: expected to hold, but was {_brief(condition)}")
    _passed += 1


def raises(what, kind, call):
    """Checks that `call` raises `kind`, and returns the exception for a closer look."""
    global _passed
    try:
        result = call()
    except kind as error:
        _passed += 1
        return error
    except Exception as error:
        _fail(f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}")
    _fail(f"{what}: expected {kind.__name__}, got {_brief(result)}")


def eventually(what, condition, seconds=5):
    """Polls until a condition holds that a server's background threads establish."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    true(what, condition())


def stat_names(what, stats, *names):
    for name in names:
        true(f"{what} has {name!r}", name in stats)


def wait_for_expiry():
    time.sleep(SHORT_TTL_S + 0.2)


def finish(client, version):
    print(f"{client} {version}: {_passed} checks passed")


def _fail(message):
    sys.exit(f"FAILED after {_passed} checks: {_context}{message}")


def _brief(value):
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


# Ends by an exception, so that `finally` blocks run and child processes are stopped.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED: stopped"))
