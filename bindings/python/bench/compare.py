#!/usr/bin/env python3
"""Measures calls from Python: fabcache through shared memory, pylibmc and pymemcache over a Unix socket.

    compare.py --fabcached target/release/fabcached [--memcached memcached] [--rounds 15]

fabcache asks a fabcached; the others ask memcached, if that is named, and the same fabcached. Each round takes a batch of calls of
each in turn, so that what disturbs the machine disturbs all alike. Told are the median of rounds, and the best and worst round.
With two processors or more the servers have one of their own, and this program another.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import fabcache

# Minimum number of calls in a batch, and its minimum duration.
CALLS_MIN = 20
BATCH_SECONDS = 0.02


def wait_for(path):
    deadline = time.monotonic() + 10
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            sys.exit(f"{path}: no server listens there")
        time.sleep(0.01)
    time.sleep(0.1)


class Servers:
    """Servers on Unix sockets, stopped at the end."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def start(self, name, *command):
        path = os.path.join(self.folder, f"{name}.sock")
        root = ["-u", "root"] if os.geteuid() == 0 else []
        try:
            process = subprocess.Popen(
                [*command, "-s", path, "-m", "256", "-t", "1", *root], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            sys.exit(f"{command[0]}: {error}")
        self.running.append(process)
        if len(os.sched_getaffinity(0)) > 1:
            os.sched_setaffinity(process.pid, {sorted(os.sched_getaffinity(0))[-1]})
        wait_for(path)
        return path

    def stop(self):
        for process in self.running:
            process.terminate()
            process.wait()


def clients(fabcached, memcached):
    """Names, and calls by name."""
    found = {"fabcache, shared memory": fabcache.Client(fabcached, shared_memory=True, default_noreply=False)}
    for server, path in (("memcached", memcached), ("fabcached", fabcached)):
        if path is None:
            continue
        if importlib.util.find_spec("pylibmc"):
            import pylibmc

            found[f"pylibmc, {server}"] = pylibmc.Client([path])
            found[f"pylibmc binary, {server}"] = pylibmc.Client([path], binary=True)
        if importlib.util.find_spec("pymemcache"):
            import pymemcache

            found[f"pymemcache, {server}"] = pymemcache.Client(path, default_noreply=False)
    return found


def works(client, size, keys):
    """Return the measurements, each a function without arguments and the number of keys that it reads."""
    value = b"x" * size
    names = [f"key{n}" for n in range(keys)]
    get, set_one, get_multi = client.get, client.set, client.get_multi
    set_one("key", value)
    for name in names:
        set_one(name, value)
    assert get("key") == value and len(get_multi(names)) == keys
    return {
        f"get {size} B": (lambda: get("key"), 1),
        f"set {size} B": (lambda: set_one("key", value), 1),
        f"get_multi {keys} x {size} B": (lambda: get_multi(names), keys),
    }


def batch_ns(call, calls):
    begun = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - begun) / calls


def measured(call, rounds_left):
    """Return the number of calls of a batch, after warming up."""
    calls = CALLS_MIN
    while True:
        ns = batch_ns(call, calls)
        if ns * calls >= BATCH_SECONDS * 1e9 / 2 or rounds_left == 0:
            return max(CALLS_MIN, int(BATCH_SECONDS * 1e9 / ns))
        calls, rounds_left = calls * 2, rounds_left - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabcached", required=True, help="the server")
    parser.add_argument("--memcached", help="another for the other clients")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=64, help="bytes of a value")
    parser.add_argument("--keys", type=int, default=100, help="keys of a get_multi")
    parser.add_argument("--json", help="where all rounds are written to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fabcache-bench-") as folder:
        servers = Servers(folder)
        try:
            fabcached = servers.start("fabcached", args.fabcached, "--shm")
            memcached = servers.start("memcached", args.memcached) if args.memcached else None
            if len(os.sched_getaffinity(0)) > 1:
                os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
            compare(clients(fabcached, memcached), args)
        finally:
            servers.stop()


def compare(found, args):
    work = {name: works(client, args.size, args.keys) for name, client in found.items()}
    first = next(iter(found))
    results = {}
    for what in work[first]:
        calls = {name: measured(work[name][what][0], 20) for name in found}
        rounds = {name: [] for name in found}
        for _ in range(args.rounds):
            for name in found:
                rounds[name].append(batch_ns(work[name][what][0], calls[name]))
        results[what] = rounds
        print(f"\n{what}, ns a call (median of {args.rounds} rounds, best, worst)")
        ours = statistics.median(rounds[first])
        for name, ns in rounds.items():
            median = statistics.median(ns)
            ratio = "" if name == first else f"  {median / ours:6.1f} x"
            print(f"  {name:34} {median:10.0f} {min(ns):10.0f} {max(ns):10.0f}{ratio}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
