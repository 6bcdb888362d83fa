"""python-memcached: text protocol over TCP and a Unix socket."""

from importlib.metadata import version

import memcache

import checks as c


def main():
    clients = {}
    for name, address in (("tcp", c.ADDRESS), ("unix", f"unix:{c.SOCKET}")):
        c.context(name)
        # The client's own limit is off, so that the server's limit applies.
        clients[name] = client = memcache.Client(
            [address], cache_cas=True, server_max_value_length=0, socket_timeout=5)
        storage(client)
        retrieval(client)
        counters(client)
        errors(client, address)
        noreply(client)
        statistics(client)
        flush(client)
    expiry(clients)
    for client in clients.values():
        client.quit_all()
    c.context("")
    c.finish("python-memcached", version("python-memcached"))


def storage(client):
    for what, value in (
        ("empty", b""),
        ("short", b"value"),
        ("binary", c.BINARY),
        ("text", "grüße 時間"),
        ("integer", 2**62),
        ("object", {"nested": [1, 2.5, None]}),
        ("line ends", b"a\r\nEND\r\nb"),
        ("large", c.LARGE),
        ("near the limit", c.NEAR_LIMIT),
    ):
        c.equal(f"set {what}", client.set("key", value), True)
        c.equal(f"get {what}", client.get("key"), value)
    c.equal("set compressed", client.set("key", b"z" * 500_000, min_compress_len=100), True)
    c.equal("get compressed", client.get("key"), b"z" * 500_000)

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

    c.equal("gets", client.gets("added"), b"start-3-end")
    c.equal("cas", client.cas("added", b"swapped"), True)
    c.equal("cas with an old token", client.cas("added", b"lost"), False)
    c.equal("cas kept the winner", client.get("added"), b"swapped")
    client.gets("added")
    c.equal("delete", client.delete("added"), 1)
    c.equal("cas on a deleted key", client.cas("added", b"lost"), False)
    c.equal("delete absent", client.delete("added"), 0)
    c.equal("get deleted", client.get("added"), None)

    for key in ("k" * 250, "punctuation~!@#$%^&*()", "schlüssel-時間"):
        c.equal(f"set key {key[:12]!r}", client.set(key, b"odd"), True)
        c.equal(f"get key {key[:12]!r}", client.get(key), b"odd")


def retrieval(client):
    values = {f"multi-{n}": b"%d" % n * n for n in range(100)}
    c.equal("set_multi", client.set_multi(values), [])
    c.equal("get_multi", client.get_multi(list(values)), values)
    c.equal("get_multi with misses", client.get_multi(["multi-1", "absent", "multi-2"]),
            {"multi-1": b"1", "multi-2": b"22"})
    c.equal("get_multi with a prefix", client.get_multi([1, 2], key_prefix="multi-"), {1: b"1", 2: b"22"})
    c.equal("delete_multi", client.delete_multi(list(values)), 1)
    c.equal("get_multi after delete", client.get_multi(list(values)), {})


def counters(client):
    client.set("counter", 10)
    c.equal("incr", client.incr("counter", 5), 15)
    c.equal("decr", client.decr("counter", 6), 9)
    c.equal("get a padded counter", client.get("counter"), 9)
    c.equal("decr stops at zero", client.decr("counter", 100), 0)
    c.equal("incr absent", client.incr("absent"), None)
    c.equal("decr absent", client.decr("absent"), None)
    client.set("counter", b"abc")
    error = c.raises("incr text", ValueError, lambda: client.incr("counter"))
    c.true("incr text says", "CLIENT_ERROR cannot increment or decrement non-numeric value" in str(error))


def errors(client, address):
    client.set("key", b"old")
    c.equal("too large", client.set("key", c.TOO_LARGE), False)
    c.equal("a refused set removes the old value", client.get("key"), None)
    c.equal("usable after an error", client.set("key", b"new"), True)
    c.raises("the client refuses a long key", memcache.Client.MemcachedKeyLengthError,
             lambda: client.set("k" * 251, b""))
    c.raises("the client refuses a space", memcache.Client.MemcachedKeyCharacterError,
             lambda: client.set("a b", b""))
    unchecked = memcache.Client([address], check_keys=False, socket_timeout=5)
    c.equal("the server refuses a long key", unchecked.set("k" * 251, b"x"), False)
    unchecked.disconnect_all()


def noreply(client):
    for n in range(1000):
        client.set(f"quiet-{n}", n, noreply=True)
    c.equal("noreply sets", client.get_multi([f"quiet-{n}" for n in range(1000)]),
            {f"quiet-{n}": n for n in range(1000)})
    client.set_multi({"quiet-a": b"a", "quiet-b": b"b"}, noreply=True)
    client.append("quiet-a", b"+", noreply=True)
    client.prepend("quiet-a", b"+", noreply=True)
    client.add("quiet-a", b"not stored", noreply=True)
    client.replace("quiet-b", b"B", noreply=True)
    client.delete("quiet-1", noreply=True)
    client.delete_multi(["quiet-6", "quiet-7"], noreply=True)
    client.incr("quiet-2", 40, noreply=True)
    client.decr("quiet-3", 2, noreply=True)
    client.touch("quiet-4", 100, noreply=True)
    c.equal("noreply mix",
            client.get_multi(["quiet-a", "quiet-b", "quiet-1", "quiet-2", "quiet-3", "quiet-6", "quiet-7"]),
            {"quiet-a": b"+a+", "quiet-b": b"B", "quiet-2": 42, "quiet-3": 1})


def statistics(client):
    (_, stats), = client.get_stats()
    c.true("version is three numbers", all(part.isdigit() for part in stats["version"].split(".")))
    for name in ("pid", "uptime", "time", "curr_items", "cmd_get", "cmd_set", "limit_maxbytes", "threads"):
        c.true(f"stats {name} is a number", stats[name].isdigit())
    (_, settings), = client.get_stats("settings")
    c.equal("settings item_size_max", settings["item_size_max"], "1048576")
    (_, items), = client.get_stats("items")
    c.true("stats items", any(name.endswith(":number") for name in items))
    (_, slabs), = client.get_slab_stats()
    c.true("stats slabs totals", int(slabs["active_slabs"]) > 0 and int(slabs["total_malloced"]) > 0)
    classes = [each for each in slabs if each.isdigit()]
    c.equal("as many classes as active_slabs says", len(classes), int(slabs["active_slabs"]))
    for each in classes:
        c.true(f"class {each} has a chunk size", int(slabs[each]["chunk_size"]) > 0)


def flush(client):
    client.set("flushed", b"1")
    client.flush_all()
    c.equal("flushed", client.get("flushed"), None)
    c.equal("set after flush_all", client.set("flushed", b"2"), True)
    c.equal("get after flush_all", client.get("flushed"), b"2")


def expiry(clients):
    for name, client in clients.items():
        c.context(name)
        client.set("lasting", b"1")
        client.set("short", b"1", time=c.SHORT_TTL_S)
        client.set("touched", b"1", time=c.SHORT_TTL_S)
        c.equal("before expiry", client.get("short"), b"1")
        c.equal("touch", client.touch("touched", 100), 1)
        c.equal("touch absent", client.touch("absent", 100), 0)
    c.wait_for_expiry()
    for name, client in clients.items():
        c.context(name)
        c.equal("expired", client.get("short"), None)
        c.equal("touched lives on", client.get("touched"), b"1")
        c.equal("no expiry lives on", client.get("lasting"), b"1")


main()
