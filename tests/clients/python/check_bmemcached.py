"""python-binary-memcached: binary protocol over TCP and a Unix socket."""

from importlib.metadata import version

import bmemcached
from bmemcached.exceptions import MemcachedException

import checks as c

TOO_LARGE_STATUS = 0x03
INVALID_STATUS = 0x04
NOT_NUMERIC_STATUS = 0x06


def main():
    clients = {}
    for name, address in (("tcp", c.ADDRESS), ("unix", c.SOCKET)):
        c.context(name)
        clients[name] = client = bmemcached.Client(address, socket_timeout=5)
        storage(client)
        retrieval(client)
        counters(client)
        errors(client)
        statistics(client)
        flush(client)
    expiry(clients)
    for client in clients.values():
        client.disconnect_all()
    c.context("")
    credentials()
    distributed()
    c.finish("python-binary-memcached", version("python-binary-memcached"))


def storage(client):
    for what, value in (
        ("empty", b""),
        ("short", b"value"),
        ("binary", c.BINARY),
        ("text", "grüße 時間"),
        ("integer", 2**62),
        ("object", {"nested": [1, 2.5, None]}),
        ("large", c.LARGE),
        ("near the limit", c.NEAR_LIMIT),
    ):
        c.equal(f"set {what}", client.set("key", value, compress_level=0), True)
        c.equal(f"get {what}", client.get("key"), value)
    c.equal("set compressed", client.set("key", b"z" * 500_000), True)
    c.equal("get compressed", client.get("key"), b"z" * 500_000)

    c.equal("add absent", client.add("added", b"1"), True)
    c.equal("add present", client.add("added", b"2"), False)
    c.equal("add left the value", client.get("added"), b"1")
    c.equal("replace present", client.replace("added", b"3"), True)
    c.equal("replace absent", client.replace("absent", b"3"), False)

    value, token = client.gets("added")
    c.equal("gets value", value, b"3")
    c.true("gets token", token > 0)
    stored, swapped = client.cas("added", b"swapped", token, get_cas=True)
    c.equal("cas", stored, True)
    c.true("cas answers a new token", swapped > 0 and swapped != token)
    c.equal("the answered token is the item's", client.gets("added"), (b"swapped", swapped))
    c.equal("cas with an old token", client.cas("added", b"lost", token), False)
    c.equal("cas absent", client.cas("absent", b"lost", token), False)
    c.equal("delete with an old token", client.delete("added", cas=token), False)
    c.equal("cas kept the winner", client.get("added"), b"swapped")
    c.equal("delete with the token", client.delete("added", cas=swapped), True)
    c.equal("get deleted", client.get("added"), None)
    c.equal("get with a default", client.get("added", "default"), "default")

    # The binary protocol sends a key's length, so a key may have any bytes.
    for key in ("k" * 250, "space and\ttab", "line\r\nend", "schlüssel-時間"):
        c.equal(f"set key {key[:12]!r}", client.set(key, b"odd"), True)
        c.equal(f"get key {key[:12]!r}", client.get(key), b"odd")


def retrieval(client):
    values = {f"multi-{n}": b"%d" % n * n for n in range(100)}
    c.equal("set_multi", client.set_multi(values), [])
    c.equal("get_multi", client.get_multi(list(values)), values)
    c.equal("get_multi with misses", client.get_multi(["multi-1", "absent", "multi-2", "gone"]),
            {"multi-1": b"1", "multi-2": b"22"})
    found = client.get_multi(list(values), get_cas=True)
    c.equal("get_multi tokens differ", len({token for _, token in found.values()}), 100)
    # A key with token 0 is only added, so one pipeline has both kinds of quiet stores.
    c.equal("set_multi adds", client.set_multi({("multi-1", 0): b"x", ("fresh", 0): b"y", "multi-2": b"z"}),
            [("multi-1", 0)])
    c.equal("set_multi added", client.get_multi(["multi-1", "multi-2", "fresh"]),
            {"multi-1": b"1", "multi-2": b"z", "fresh": b"y"})
    tokens = client.set_multi_cas({f"multi-{n}": b"again" for n in range(100)})
    c.equal("set_multi_cas tokens differ", len(set(tokens.values())), 100)
    c.equal("delete_multi", client.delete_multi([*values, "fresh"]), True)
    c.equal("delete_multi absent", client.delete_multi(["multi-1"]), False)
    c.equal("get_multi after delete", client.get_multi(list(values)), {})


def counters(client):
    c.equal("incr absent takes the default", client.incr("counter", 5, default=10), 10)
    c.equal("incr", client.incr("counter", 5), 15)
    c.equal("decr", client.decr("counter", 6), 9)
    c.equal("decr stops at zero", client.decr("counter", 100), 0)
    client.set("wrapping", "18446744073709551615")
    c.equal("incr wraps", client.incr("wrapping", 1), 0)
    client.set("wrapping", "abc")
    fails("incr text", NOT_NUMERIC_STATUS, lambda: client.incr("wrapping", 1))


def errors(client):
    client.set("key", b"old")
    fails("too large", TOO_LARGE_STATUS, lambda: client.set("key", c.TOO_LARGE, compress_level=0))
    c.equal("a refused set removes the old value", client.get("key"), None)
    c.equal("usable after an error", client.set("key", b"new"), True)
    fails("key too long", INVALID_STATUS, lambda: client.get("k" * 251))
    # A bad header ends the connection; the client opens another.
    client.disconnect_all()
    c.equal("usable after reconnecting", client.get("key"), b"new")


def statistics(client):
    (stats,) = client.stats().values()
    c.stat_names("stats", stats, "pid", "uptime", "version", "curr_items", "cmd_get", "limit_maxbytes")
    c.true("version is three numbers", all(part.isdigit() for part in stats["version"].split(b".")))
    (settings,) = client.stats("settings").values()
    c.equal("settings item_size_max", settings["item_size_max"], b"1048576")
    (items,) = client.stats("items").values()
    c.true("stats items", any(name.endswith(":number") for name in items))
    (slabs,) = client.stats("slabs").values()
    c.true("stats slabs", any(name.endswith(":chunk_size") for name in slabs))


def flush(client):
    client.set("flushed", b"1")
    c.equal("flush_all", client.flush_all(), True)
    c.equal("flushed", client.get("flushed"), None)
    c.equal("set after flush_all", client.set("flushed", b"2"), True)
    c.equal("get after flush_all", client.get("flushed"), b"2")
    c.equal("delayed flush_all", client.flush_all(100), True)
    c.equal("delayed flush_all waits", client.get("flushed"), b"2")
    client.flush_all()


def expiry(clients):
    for name, client in clients.items():
        c.context(name)
        client.set("lasting", b"1")
        client.set("short", b"1", time=c.SHORT_TTL_S)
        client.incr("counter", 1, default=1, time=c.SHORT_TTL_S)
        c.equal("before expiry", client.get("short"), b"1")
        c.equal("counter before expiry", client.incr("counter", 1), 2)
    c.wait_for_expiry()
    for name, client in clients.items():
        c.context(name)
        c.equal("expired", client.get("short"), None)
        c.equal("counter expired", client.get("counter"), None)
        c.equal("no expiry lives on", client.get("lasting"), b"1")


def credentials():
    # Without -S the server rejects the SASL opcodes, which the client takes as "not needed".
    client = bmemcached.Client(c.ADDRESS, "user", "password", socket_timeout=5)
    c.equal("credentials that are not asked for", client.set("key", b"1"), True)
    c.equal("get with such credentials", client.get("key"), b"1")
    client.disconnect_all()


def distributed():
    client = bmemcached.DistributedClient([c.ADDRESS, c.SOCKET], socket_timeout=5)
    values = {f"spread-{n}": b"%d" % n for n in range(200)}
    c.equal("distributed set_multi", client.set_multi(values), [])
    c.equal("distributed get_multi", client.get_multi(list(values)), values)
    shares = [bmemcached.Client(address).get_multi(list(values)) for address in (c.ADDRESS, c.SOCKET)]
    c.equal("distributed keys are on both servers", sum(map(len, shares)), 200)
    c.true("distributed keys are spread", all(len(share) > 20 for share in shares))
    client.disconnect_all()


def fails(what, status, call):
    error = c.raises(what, MemcachedException, call)
    c.equal(f"{what}: status", error.code, status)


main()
