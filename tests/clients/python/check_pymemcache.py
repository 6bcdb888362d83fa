"""pymemcache: text protocol over TCP and a Unix socket."""

from importlib.metadata import version

from pymemcache.client.base import Client
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import (
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnknownCommandError,
)

import checks as c


def main():
    clients = {}
    for name, address in (("tcp", (c.HOST, c.PORT)), ("unix", c.SOCKET)):
        c.context(name)
        clients[name] = client = Client(address, connect_timeout=5, timeout=5, default_noreply=False)
        storage(client)
        retrieval(client)
        counters(client)
        errors(client)
        noreply(address)
        statistics(client)
        flush(client)
    expiry(clients)
    for name, client in clients.items():
        c.context(name)
        client.quit()
        c.equal("a quit connection reopens", client.get("absent"), None)
        client.close()
    c.context("")
    hashed()
    c.finish("pymemcache", version("pymemcache"))


def storage(client):
    for what, value in (
        ("empty", b""),
        ("short", b"value"),
        ("binary", c.BINARY),
        ("line ends", b"a\r\nEND\r\nb"),
        ("large", c.LARGE),
        ("near the limit", c.NEAR_LIMIT),
    ):
        c.equal(f"set {what}", client.set("key", value), True)
        c.equal(f"get {what}", client.get("key"), value)

    c.equal("set with flags", client.set("flagged", b"f", flags=65535), True)
    c.equal("flags", client.raw_command("get flagged", "END\r\n"), b"VALUE flagged 65535 1\r\nf\r\n")

    c.equal("add absent", client.add("added", b"1"), True)
    c.equal("add present", client.add("added", b"2"), False)
    c.equal("add left the value", client.get("added"), b"1")
    c.equal("replace present", client.replace("added", b"3"), True)
    c.equal("replace absent", client.replace("absent", b"3"), False)
    c.equal("append", client.append("added", b"-end"), True)
    c.equal("prepend", client.prepend("added", b"start-"), True)
    c.equal("append and prepend", client.get("added"), b"start-3-end")
    c.equal("append absent", client.append("absent", b"x"), False)
    c.equal("prepend absent", client.prepend("absent", b"x"), False)

    value, token = client.gets("added")
    c.equal("gets value", value, b"start-3-end")
    c.true("gets token is a number", token.isdigit())
    c.equal("cas", client.cas("added", b"swapped", token), True)
    c.equal("cas with an old token", client.cas("added", b"lost", token), False)
    c.equal("cas absent", client.cas("absent", b"lost", token), None)
    c.equal("cas kept the winner", client.get("added"), b"swapped")
    c.true("a new token after a store", client.gets("added")[1] != token)
    c.equal("gets absent", client.gets("absent"), (None, None))

    c.equal("delete", client.delete("added"), True)
    c.equal("delete absent", client.delete("added"), False)
    c.equal("get deleted", client.get("added"), None)
    # Old clients still send the former time argument of delete.
    client.set("added", b"1")
    c.equal("delete after no time", client.raw_command("delete added 0"), b"DELETED")

    for key in ("k" * 250, "tab-free~!@#$%^&*()", "\x01\x7f"):
        c.equal(f"set key {key[:12]!r}", client.set(key, b"odd"), True)
        c.equal(f"get key {key[:12]!r}", client.get(key), b"odd")


def retrieval(client):
    values = {f"multi-{n}": b"%d" % n * n for n in range(100)}
    c.equal("set_many", client.set_many(values), [])
    c.equal("get_many", client.get_many(list(values)), values)
    c.equal("get_many with misses", client.get_many(["multi-1", "absent", "multi-2"]),
            {"multi-1": b"1", "multi-2": b"22"})
    found = client.gets_many(list(values))
    c.equal("gets_many values", {key: value for key, (value, _) in found.items()}, values)
    c.equal("gets_many tokens differ", len({token for _, token in found.values()}), 100)
    c.equal("delete_many", client.delete_many(list(values)), True)
    c.equal("get_many after delete", client.get_many(list(values)), {})


def counters(client):
    client.set("counter", b"10")
    c.equal("incr", client.incr("counter", 5), 15)
    c.equal("decr", client.decr("counter", 6), 9)
    c.equal("decr pads to the old length", client.get("counter"), b"9 ")
    c.equal("decr stops at zero", client.decr("counter", 100), 0)
    c.equal("incr absent", client.incr("absent", 1), None)
    c.equal("decr absent", client.decr("absent", 1), None)
    client.set("counter", b"18446744073709551615")
    c.equal("incr wraps", client.incr("counter", 1), 0)
    client.set("counter", b"abc")
    error = c.raises("incr text", MemcacheClientError, lambda: client.incr("counter", 1))
    c.equal("incr text says", str(error), str(b"cannot increment or decrement non-numeric value"))


def expiry(clients):
    for name, client in clients.items():
        c.context(name)
        client.set("lasting", b"1")
        client.set("short", b"1", expire=c.SHORT_TTL_S)
        client.set("touched", b"1", expire=c.SHORT_TTL_S)
        client.set("shortened", b"1")
        c.equal("negative expiry", client.set("past", b"1", expire=-1), True)
        c.equal("already expired", client.get("past"), None)
        c.equal("before expiry", client.get("short"), b"1")
        c.equal("touch", client.touch("touched", 100), True)
        c.equal("touch absent", client.touch("absent", 100), False)
        c.equal("gat", client.raw_command(f"gat {c.SHORT_TTL_S} shortened", "END\r\n"),
                b"VALUE shortened 0 1\r\n1\r\n")
    c.wait_for_expiry()
    for name, client in clients.items():
        c.context(name)
        c.equal("expired", client.get("short"), None)
        c.equal("touched lives on", client.get("touched"), b"1")
        c.equal("gat shortened", client.get("shortened"), None)
        c.equal("no expiry lives on", client.get("lasting"), b"1")
        c.equal("add over an expired item", client.add("short", b"2"), True)


def errors(client):
    client.set("key", b"old")
    error = c.raises("too large", MemcacheServerError, lambda: client.set("key", c.TOO_LARGE))
    c.equal("too large says", str(error), str(b"object too large for cache"))
    c.equal("a refused set removes the old value", client.get("key"), None)
    c.raises("the client refuses a long key", MemcacheIllegalInputError,
             lambda: client.set("k" * 251, b""))
    c.raises("the server refuses a long key", MemcacheClientError,
             lambda: client.raw_command("set " + "k" * 251 + " 0 0 1\r\nx"))
    c.equal("usable after an error", client.set("key", b"new"), True)
    c.raises("unknown command", MemcacheUnknownCommandError, lambda: client.raw_command("bogus"))
    # Clients of hosted services send this to discover a cluster.
    c.raises("no cluster to discover", MemcacheUnknownCommandError, lambda: client.raw_command("config get cluster"))
    error = c.raises("negative length", MemcacheClientError,
                     lambda: client.raw_command("set key 0 0 -1"))
    c.equal("negative length says", str(error), str(b"bad command line format"))
    error = c.raises("shutdown is off", Exception, client.shutdown)
    # Later releases prefix this line as a server error.
    kind = MemcacheServerError if c.BEHAVIOUR >= (1, 6, 45) else MemcacheUnknownCommandError
    c.equal("shutdown is off, as", type(error), kind)


def noreply(address):
    # noreply is this client's default: the following get must see every store before it.
    client = Client(address, connect_timeout=5, timeout=5)
    for n in range(1000):
        client.set(f"quiet-{n}", b"%d" % n)
    c.equal("noreply sets", client.get_many([f"quiet-{n}" for n in range(1000)]),
            {f"quiet-{n}": b"%d" % n for n in range(1000)})
    client.set_many({"quiet-a": b"a", "quiet-b": b"b"})
    client.append("quiet-a", b"+")
    client.prepend("quiet-a", b"+")
    client.add("quiet-a", b"not stored")
    client.replace("quiet-b", b"B")
    client.delete("quiet-1")
    client.incr("quiet-2", 40, noreply=True)
    client.decr("quiet-3", 2, noreply=True)
    client.touch("quiet-4", 100)
    client.set("quiet-5", c.TOO_LARGE)
    c.equal("noreply mix", client.get_many(["quiet-a", "quiet-b", "quiet-1", "quiet-2", "quiet-3"]),
            {"quiet-a": b"+a+", "quiet-b": b"B", "quiet-2": b"42", "quiet-3": b"1"})
    client.close()


def statistics(client):
    number = client.version()
    parts = number.split(b".")
    c.true("version is three numbers", len(parts) == 3 and all(p.isdigit() for p in parts))
    stats = client.stats()
    c.equal("stats version", stats[b"version"], number)
    for name in (b"pid", b"uptime", b"time", b"curr_items", b"total_items", b"cmd_get", b"cmd_set",
                 b"get_hits", b"get_misses", b"bytes", b"limit_maxbytes", b"threads", b"evictions",
                 b"curr_connections", b"bytes_read", b"bytes_written"):
        c.equal(f"stats {name.decode()} is a number", type(stats.get(name)), int)
    c.equal("rusage is a float", type(stats[b"rusage_user"]), float)
    settings = client.stats("settings")
    c.equal("settings item_size_max", settings[b"item_size_max"], 1024 * 1024)
    c.equal("settings cas_enabled", settings[b"cas_enabled"], b"yes")
    c.equal("settings umask", settings[b"umask"], 0o700)
    items = client.stats("items")
    c.true("stats items", any(name.endswith(b":number") for name in items))
    slabs = client.stats("slabs")
    c.stat_names("stats slabs", slabs, b"active_slabs", b"total_malloced")
    c.true("stats slabs has chunk sizes", any(name.endswith(b":chunk_size") for name in slabs))
    c.true("stats conns", any(name.endswith(b":state") for name in client.stats("conns")))
    # A unique size, so that the item is alone in its class. memcached dumps only its cold
    # items, and takes a moment to let a new one cool.
    client.set("dumped", b"d" * 3000)
    c.eventually("cachedump", lambda: any(
        client.stats("cachedump", each, "0").get(b"dumped", b"").startswith(b"[3000 b; ")
        for each in {name.split(b":")[1].decode() for name in client.stats("items")}))
    c.equal("stats sizes", client.stats("sizes")[b"sizes_status"], b"disabled")
    c.equal("cache_memlimit", client.cache_memlimit(stats[b"limit_maxbytes"] >> 20), True)
    c.raises("cache_memlimit too small", Exception, lambda: client.cache_memlimit(1))
    c.equal("verbosity", client.raw_command("verbosity 0"), b"OK")
    c.equal("stats reset", client.raw_command("stats reset"), b"RESET")
    c.equal("stats were reset", client.stats()[b"total_items"], 0)


def flush(client):
    client.set("flushed", b"1")
    c.equal("flush_all", client.flush_all(), True)
    c.equal("flushed", client.get("flushed"), None)
    c.equal("set after flush_all", client.set("flushed", b"2"), True)
    c.equal("get after flush_all", client.get("flushed"), b"2")
    c.equal("delayed flush_all", client.flush_all(delay=100), True)
    c.equal("delayed flush_all waits", client.get("flushed"), b"2")
    # Leaves no flush pending.
    client.flush_all()


def hashed():
    client = HashClient([(c.HOST, c.PORT), c.SOCKET], default_noreply=False, timeout=5)
    values = {f"spread-{n}": b"%d" % n for n in range(100)}
    c.equal("hash set_many", client.set_many(values), [])
    c.equal("hash get_many", client.get_many(list(values)), values)
    shares = [Client(address, timeout=5).get_many(list(values)) for address in ((c.HOST, c.PORT), c.SOCKET)]
    c.equal("hash keys are on both servers", sum(map(len, shares)), 100)
    c.true("hash keys are spread", all(len(share) > 20 for share in shares))
    client.close()


main()
