"""twemproxy (nutcracker) in front of both servers, driven by pymemcache."""

import os
import re
import shutil
import socket
import subprocess
import time

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

import checks as c

CONFIGURATION = """\
pool:
  listen: {listen}
  hash: fnv1a_64
  distribution: ketama
  timeout: 5000
  preconnect: true
  auto_eject_hosts: false
  server_connections: 2
  servers:
   - {tcp}:1 over-tcp
   - {unix}:1 over-unix
"""


def main():
    # Debian installs it outside an ordinary user's PATH.
    program = shutil.which("nutcracker", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if not program:
        raise SystemExit("FAILED: nutcracker is not installed")
    banner = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"nutcracker-([\d.]+)", banner.stdout + banner.stderr).group(1)
    listen = os.path.join(c.SCRATCH, "proxy.sock")
    configuration = os.path.join(c.SCRATCH, "proxy.yml")
    with open(configuration, "w") as file:
        file.write(CONFIGURATION.format(listen=listen, tcp=c.ADDRESS, unix=c.SOCKET))
    log = os.path.join(c.SCRATCH, "proxy.log")
    proxy = subprocess.Popen(
        [program, "-c", configuration, "-o", log, "-a", "127.0.0.1", "-s", str(free_port())])
    try:
        connect(listen, proxy, log)
        check(Client(listen, timeout=5, default_noreply=False))
        c.equal("the proxy still runs", proxy.poll(), None)
    finally:
        proxy.terminate()
        proxy.wait()
    c.finish("twemproxy", version)


def check(client):
    values = {f"spread-{n}": b"%d" % n * n for n in range(200)}
    c.equal("set_many", client.set_many(values), [])
    c.equal("get_many over both servers", client.get_many(list(values)), values)
    servers = [Client((c.HOST, c.PORT), timeout=5), Client(c.SOCKET, timeout=5)]
    shares = [server.get_many(list(values)) for server in servers]
    c.equal("keys are on both servers", sum(map(len, shares)), 200)
    c.true("keys are spread", all(len(share) > 20 for share in shares))
    found = client.gets_many(list(values))
    c.equal("gets_many", {key: value for key, (value, _) in found.items()}, values)

    for what, value in (("empty", b""), ("binary", c.BINARY), ("line ends", b"a\r\nEND\r\nb"),
                        ("large", c.LARGE), ("near the limit", c.NEAR_LIMIT)):
        for key in ("key-1", "key-2", "key-3", "key-4"):
            c.equal(f"set {what} {key}", client.set(key, value), True)
            c.equal(f"get {what} {key}", client.get(key), value)

    for key in ("counter-1", "counter-2", "counter-3", "counter-4"):
        c.equal(f"add absent {key}", client.add(key, b"10"), True)
        c.equal(f"add present {key}", client.add(key, b"11"), False)
        c.equal(f"incr {key}", client.incr(key, 5), 15)
        c.equal(f"decr {key}", client.decr(key, 3), 12)
        c.equal(f"replace {key}", client.replace(key, b"mid"), True)
        c.equal(f"append {key}", client.append(key, b">"), True)
        c.equal(f"prepend {key}", client.prepend(key, b"<"), True)
        value, token = client.gets(key)
        c.equal(f"gets {key}", value, b"<mid>")
        c.equal(f"cas {key}", client.cas(key, b"new", token), True)
        c.equal(f"cas with an old token {key}", client.cas(key, b"lost", token), False)
        c.equal(f"touch {key}", client.touch(key, 100), True)
        c.equal(f"touch to a short life {key}", client.touch(key, c.SHORT_TTL_S), True)
    c.equal("incr absent", client.incr("absent", 1), None)
    c.equal("touch absent", client.touch("absent", 1), False)
    c.equal("delete", client.delete("key-1"), True)
    c.equal("delete absent", client.delete("key-1"), False)
    c.raises("too large", MemcacheServerError, lambda: client.set("key-2", c.TOO_LARGE))
    c.equal("usable after an error", client.set("key-2", b"new"), True)

    for n in range(1000):
        client.set(f"quiet-{n}", b"%d" % n, noreply=True)
    # The proxy keeps the order per server only, so each server is read after its stores.
    c.eventually("noreply sets", lambda: client.get_many([f"quiet-{n}" for n in range(1000)])
                 == {f"quiet-{n}": b"%d" % n for n in range(1000)})
    c.wait_for_expiry()
    c.equal("expired", client.get_many(["counter-1", "counter-2", "counter-3", "counter-4"]), {})
    client.close()


def connect(path, proxy, log):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and proxy.poll() is None:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return
        time.sleep(0.02)
    with open(log) as file:
        raise SystemExit(f"FAILED: twemproxy does not listen:\n{file.read()}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


main()
