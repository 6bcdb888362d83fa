"""meta-memcache: meta commands only, over TCP and a Unix socket."""

import logging
import random
import socket
from importlib.metadata import version

from meta_memcache import (
    CacheClient,
    ConnectionPool,
    LeasePolicy,
    MemcacheError,
    Miss,
    RecachePolicy,
    RequestFlags,
    ServerAddress,
    SetMode,
    StalePolicy,
    Success,
    Value,
    Key,
    connection_pool_factory_builder,
)
from meta_memcache_socket import MemcacheSocket

import checks as c

TTL_S = 1000
# The client gives the kernel this as the receive buffer: its default of 4 KiB makes TCP stop and
# start on values as large as these.
RECEIVE_BUFFER = 1024 * 1024
# The client logs a trace for each error that the checks provoke.
logging.disable()


def main():
    clients = {}
    for name, factory in (
        ("tcp", connection_pool_factory_builder(
            connection_timeout=5, recv_timeout=5, read_buffer_size=RECEIVE_BUFFER)),
        ("unix", unix_pool),
    ):
        c.context(name)
        clients[name] = client = CacheClient.cache_client_from_servers([ServerAddress(c.HOST, c.PORT)], factory)
        storage(client)
        retrieval(client)
        counters(client)
        metadata(client)
        staleness(client)
        leases(client)
        errors(client)
        noreply(client)
    expiry(clients)
    c.context("")
    slow_reader()
    sockets()
    c.finish("meta-memcache", version("meta-memcache"))


def unix_pool(_address):
    def connect():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(5)
        connection.connect(c.SOCKET)
        return connection

    return ConnectionPool("unix", connect, initial_pool_size=1, max_pool_size=3, read_buffer_size=RECEIVE_BUFFER)


def storage(client):
    for what, value in (
        ("empty", b""),
        ("short", b"value"),
        ("binary", c.BINARY),
        ("text", "grüße 時間"),
        ("integer", 2**62),
        ("object", {"nested": [1, 2.5, None]}),
        ("line ends", b"a\r\nEN\r\nb"),
    ):
        c.equal(f"set {what}", client.set("key", value, ttl=TTL_S), True)
        # The client returns an empty value without its type.
        c.equal(f"get {what}", client.get("key") or b"", value)
    c.equal("set compressed", client.set("key", b"z" * 500_000, ttl=TTL_S), True)
    c.equal("get compressed", client.get("key"), b"z" * 500_000)

    c.equal("add absent", client.set("added", b"1", ttl=TTL_S, set_mode=SetMode.ADD), True)
    c.equal("add present", client.set("added", b"2", ttl=TTL_S, set_mode=SetMode.ADD), False)
    c.equal("refill present", client.refill("added", b"2", ttl=TTL_S), False)
    c.equal("add left the value", client.get("added"), b"1")
    c.equal("replace present", client.set("added", b"3", ttl=TTL_S, set_mode=SetMode.REPLACE), True)
    c.equal("replace absent", client.set("absent", b"3", ttl=TTL_S, set_mode=SetMode.REPLACE), False)
    c.equal("append", client.set("added", b"-end", ttl=TTL_S, set_mode=SetMode.APPEND), True)
    c.equal("prepend", client.set("added", b"start-", ttl=TTL_S, set_mode=SetMode.PREPEND), True)
    c.equal("append and prepend", client.get("added"), b"start-3-end")
    c.equal("append absent", client.set("absent", b"x", ttl=TTL_S, set_mode=SetMode.APPEND), False)

    value, token = client.get_cas("added")
    c.equal("get_cas value", value, b"start-3-end")
    swapped = client.set_cas("added", b"swapped", ttl=TTL_S, cas_token=token)
    c.true("set_cas answers a new token", swapped and swapped != token)
    c.equal("the answered token is the item's", client.get_cas("added"), (b"swapped", swapped))
    c.equal("set with an old token", client.set("added", b"lost", ttl=TTL_S, cas_token=token), False)
    c.equal("set absent with a token", client.set("absent", b"lost", ttl=TTL_S, cas_token=token), False)
    c.equal("delete with an old token", client.delete("added", cas_token=token), False)
    c.equal("cas kept the winner", client.get("added"), b"swapped")
    c.equal("delete with the token", client.delete("added", cas_token=swapped), True)
    c.equal("delete absent", client.delete("added"), False)
    c.equal("invalidate absent", client.invalidate("added"), True)
    c.equal("get deleted", client.get("added"), None)

    # Keys that a text line cannot contain, and long ones, are sent in base64.
    for key in ("k" * 250, "punctuation~!@#$%^&*()", "schlüssel-時間", "space and\ttab"):
        c.equal(f"set key {key[:12]!r}", client.set(key, b"odd", ttl=TTL_S), True)
        c.equal(f"get key {key[:12]!r}", client.get(key), b"odd")
        c.equal(f"get key {key[:12]!r} among others", client.multi_get([key, "absent"]),
                {Key(key): b"odd", Key("absent"): None})


def retrieval(client):
    values = {f"multi-{n}": b"%d" % n * (n % 7 + 1) for n in range(100)}
    for key, value in values.items():
        client.set(key, value, ttl=TTL_S)
    keys = [*values, "absent"]
    expected = {Key(key): value for key, value in values.items()} | {Key("absent"): None}
    c.equal("multi_get", client.multi_get(keys), expected)
    found = client.multi_get_cas(keys)
    c.equal("multi_get_cas values", {key: value for key, (value, _) in found.items()}, expected)
    c.equal("multi_get_cas tokens differ", len({token for _, token in found.values()}), 101)


def counters(client):
    c.equal("delta absent", client.delta("counter", 5), False)
    c.equal("delta_and_get absent", client.delta_and_get("counter", 5), None)
    c.equal("delta_initialize_and_get", client.delta_initialize_and_get(
        "counter", 5, initial_value=10, initial_ttl=TTL_S), 10)
    c.equal("increment", client.delta_and_get("counter", 5), 15)
    c.equal("decrement", client.delta_and_get("counter", -6), 9)
    c.equal("decrement stops at zero", client.delta_and_get("counter", -100), 0)
    c.equal("delta", client.delta("counter", 3), True)
    _, token = client.get_cas("counter")
    c.equal("delta with the token", client.delta("counter", 1, cas_token=token), True)
    c.equal("delta with an old token", client.delta("counter", 1, cas_token=token), False)
    c.equal("delta with a new time to live", client.delta("counter", 1, refresh_ttl=77), True)
    result = client.meta_get(Key("counter"), RequestFlags(return_value=True, return_ttl=True))
    # A shorter number keeps the former length of the counter.
    c.equal("counter and its time to live", (result.value, 75 <= result.flags.ttl <= 77), ("5 ", True))
    client.set("counter", "abc", ttl=TTL_S)
    c.raises("delta on text", MemcacheError, lambda: client.delta("counter", 1))


def metadata(client):
    client.set("described", b"12345", ttl=TTL_S)
    # The first read reports that it is the first.
    every = RequestFlags(return_value=True, return_ttl=True, return_client_flag=True, return_size=True,
                         return_last_access=True, return_fetched=True, return_cas_token=True, return_key=True,
                         opaque=b"opaque-1")
    first = client.meta_get(Key("described"), every)
    c.equal("value and size", (first.value, first.size, first.flags.size), (b"12345", 5, 5))
    c.true("time to live", TTL_S - 2 <= first.flags.ttl <= TTL_S)
    c.equal("client flag", first.flags.client_flag, 16)
    c.equal("opaque comes back", first.flags.opaque, b"opaque-1")
    c.equal("first fetch", (first.flags.fetched, first.flags.last_access), (False, 0))
    c.true("cas token", first.flags.cas_token > 0)
    second = client.meta_get(Key("described"), every)
    c.equal("second fetch", second.flags.fetched, True)
    c.equal("neither won, lost nor stale", (second.flags.win, second.flags.stale), (None, False))

    bare = client.meta_get(Key("described"), RequestFlags(return_ttl=True))
    c.equal("without a value", type(bare), Success)
    c.equal("miss", type(client.meta_get(Key("absent"), every)), Miss)

    client.set("unread", b"1", ttl=TTL_S)
    client.meta_get(Key("unread"), RequestFlags(no_update_lru=True, return_value=True))
    quiet = client.meta_get(Key("unread"), RequestFlags(no_update_lru=True, return_fetched=True))
    c.equal("a read that leaves no trace", quiet.flags.fetched, False)

    c.equal("touch", client.touch("described", ttl=50), True)
    c.true("touched", 48 <= client.meta_get(Key("described"), RequestFlags(return_ttl=True)).flags.ttl <= 50)
    c.equal("touch absent", client.touch("absent", ttl=50), False)
    c.equal("get and touch", client.get("described", touch_ttl=90), b"12345")
    c.true("got and touched", 88 <= client.meta_get(Key("described"), RequestFlags(return_ttl=True)).flags.ttl <= 90)
    client.touch("described", ttl=0)
    c.equal("without expiry", client.meta_get(Key("described"), RequestFlags(return_ttl=True)).flags.ttl, -1)


def staleness(client):
    policy = StalePolicy(mark_stale_on_deletion_ttl=100, mark_stale_on_cas_mismatch=True)
    client.set("stale", b"old", ttl=TTL_S)
    _, token = client.get_cas("stale")
    c.equal("mark stale", client.delete("stale", stale_policy=policy), True)
    flags = RequestFlags(return_value=True, return_ttl=True, return_cas_token=True, return_client_flag=True)
    won = client.meta_get(Key("stale"), flags)
    c.equal("the first reader wins", (won.flags.win, won.flags.stale, won.value), (True, True, b"old"))
    c.true("a stale item's time to live", won.flags.ttl <= 100)
    lost = client.meta_get(Key("stale"), flags)
    c.equal("the second reader does not", (lost.flags.win, lost.flags.stale, lost.value), (False, True, b"old"))
    # An older token stores a stale item, and does not grant another win.
    c.equal("store with an older token", client.set("stale", b"older", ttl=TTL_S, cas_token=token,
                                                    stale_policy=policy), True)
    again = client.meta_get(Key("stale"), flags)
    c.equal("stored as stale", (again.flags.win, again.flags.stale, again.value), (False, True, b"older"))
    c.true("stored as stale, with the old time to live", again.flags.ttl <= 100)
    c.equal("store with the newest token", client.set("stale", b"new", ttl=TTL_S,
                                                      cas_token=again.flags.cas_token), True)
    fresh = client.meta_get(Key("stale"), flags)
    c.equal("fresh", (fresh.flags.win, fresh.flags.stale, fresh.value), (None, False, b"new"))

    client.set("recached", b"value", ttl=20)
    policy = RecachePolicy(ttl=30)
    c.equal("the first to recache sees a miss", client.get("recached", recache_policy=policy), None)
    c.equal("the others see the value", client.get("recached", recache_policy=policy), b"value")
    client.set("recached", b"value", ttl=TTL_S)
    c.equal("none recaches early", client.get("recached", recache_policy=policy), b"value")


def leases(client):
    waits = []

    def fill(seconds):
        waits.append(seconds)
        client.set("leased", b"filled", ttl=TTL_S)

    policy = LeasePolicy(ttl=30, miss_retries=3, miss_retry_wait=0.01)
    c.equal("the first reader gets the lease", client.get_or_lease("leased", policy), None)
    c.equal("a later one waits for the value", client.get_or_lease("leased", policy, lease_wait_fn=fill), b"filled")
    c.equal("it waited once", len(waits), 1)
    c.equal("then no lease is needed", client.get_or_lease("leased", policy, lease_wait_fn=fill), b"filled")
    c.equal("nor a wait", len(waits), 1)


def errors(client):
    client.set("key", b"old", ttl=TTL_S)
    incompressible = random_bytes(1024 * 1024 + 1)
    c.raises("too large", MemcacheError, lambda: client.set("key", incompressible, ttl=TTL_S))
    c.equal("usable after an error", client.set("key", b"new", ttl=TTL_S), True)
    c.equal("large", client.set("key", incompressible[: -64 * 1024], ttl=TTL_S), True)
    c.equal("get large", client.get("key"), incompressible[: -64 * 1024])
    c.equal("the client shortens a long key", client.set("k" * 251, b"long", ttl=TTL_S), True)
    c.equal("get by a long key", (client.get("k" * 251), client.get("k" * 250)), (b"long", b"odd"))


def noreply(client):
    # The client sends a no-op with each quiet store, and reads its answer with the next read: a Unix socket
    # holds a few hundred such answers before both ends block.
    for n in range(1000):
        client.set(f"quiet-{n}", n, ttl=TTL_S, no_reply=True)
        if n % 100 == 99:
            c.equal(f"quiet sets to {n}", client.multi_get([f"quiet-{m}" for m in range(n - 99, n + 1)]),
                    {Key(f"quiet-{m}"): m for m in range(n - 99, n + 1)})
    client.delete("quiet-1", no_reply=True)
    client.delta("quiet-2", 40, no_reply=True)
    client.touch("quiet-3", ttl=50, no_reply=True)
    client.set("quiet-4", b"not stored", ttl=TTL_S, set_mode=SetMode.ADD, no_reply=True)
    client.delete("absent", no_reply=True)
    c.equal("quiet mix", client.multi_get([f"quiet-{n}" for n in range(1, 5)]),
            {Key("quiet-1"): None, Key("quiet-2"): 42, Key("quiet-3"): 3, Key("quiet-4"): 4})


def expiry(clients):
    for name, client in clients.items():
        c.context(name)
        client.set("lasting", b"1", ttl=0)
        client.set("short", b"1", ttl=c.SHORT_TTL_S)
        client.set("touched", b"1", ttl=c.SHORT_TTL_S)
        c.equal("before expiry", client.get("short"), b"1")
        client.touch("touched", ttl=100)
    c.wait_for_expiry()
    for name, client in clients.items():
        c.context(name)
        c.equal("expired", client.get("short"), None)
        c.equal("touched lives on", client.get("touched"), b"1")
        c.equal("no expiry lives on", client.get("lasting"), b"1")


def slow_reader():
    client = CacheClient.cache_client_from_servers(
        [ServerAddress(c.HOST, c.PORT)], connection_pool_factory_builder(connection_timeout=5, recv_timeout=5))
    value = random_bytes(32 * 1024)
    client.set("slowly", value, ttl=TTL_S)
    c.equal("a value many times the receive buffer", client.get("slowly"), value)


def sockets():
    """The extension's own socket: pipelines, and plain commands beside the meta ones."""
    with socket.create_connection((c.HOST, c.PORT), timeout=5) as connection:
        meta = MemcacheSocket(connection)
        meta.meta_set("piped", b"1", RequestFlags(cache_ttl=TTL_S))
        value = RequestFlags(return_value=True)
        for n in range(100):
            meta.send_meta_get("piped" if n % 2 else "absent", value)
        kinds = [type(meta.get_response()) for _ in range(100)]
        c.equal("pipelined gets answer in order", kinds, [Miss, Value] * 50)
        for n in range(100):
            meta.send_meta_set(f"piped-{n}", b"%d" % n, RequestFlags(no_reply=True))
        # The client sends a no-op with each quiet store.
        batch = meta.meta_multiget([f"piped-{n}" for n in range(100)], value)
        c.equal("pipelined quiet sets", [bytes(each.value) for each in batch], [b"%d" % n for n in range(100)])
        c.true("version", meta.raw_cmd(b"version").startswith(b"VERSION "))
        c.true("stats", b"STAT pid " in meta.raw_cmd(b"stats", multi_line=True))
        c.true("mn", meta.raw_cmd(b"mn").startswith(b"MN"))
        debug = meta.raw_cmd(b"me piped")
        for field in (b"exp=", b"la=", b"cas=", b"fetch=yes", b"cls=", b"size="):
            c.true(f"me has {field.decode()}", field in debug)
        c.true("flush_all", meta.raw_cmd(b"flush_all").startswith(b"OK"))
        c.equal("flushed", type(meta.meta_get("piped", value)), Miss)


def random_bytes(length):
    """Bytes that do not compress, the same in every run."""
    return random.Random(1).randbytes(length)


main()
