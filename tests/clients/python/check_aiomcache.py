"""aiomcache: text protocol from asyncio, over TCP."""

import asyncio
from importlib.metadata import version

import aiomcache
from aiomcache.exceptions import ClientException, ValidationException

import checks as c


async def main():
    client = aiomcache.Client(c.HOST, c.PORT, pool_size=4)
    await storage(client)
    await retrieval(client)
    await counters(client)
    await errors(client)
    await statistics(client)
    await flush(client)
    await concurrency(client)
    await expiry(client)
    await client.close()
    c.finish("aiomcache", version("aiomcache"))


async def storage(client):
    for what, value in (
        ("empty", b""),
        ("short", b"value"),
        ("binary", c.BINARY),
        ("line ends", b"a\r\nEND\r\nb"),
        ("large", c.LARGE),
        ("near the limit", c.NEAR_LIMIT),
    ):
        c.equal(f"set {what}", await client.set(b"key", value), True)
        c.equal(f"get {what}", await client.get(b"key"), value)

    c.equal("add absent", await client.add(b"added", b"1"), True)
    c.equal("add present", await client.add(b"added", b"2"), False)
    c.equal("add left the value", await client.get(b"added"), b"1")
    c.equal("replace present", await client.replace(b"added", b"3"), True)
    c.equal("replace absent", await client.replace(b"absent", b"3"), False)
    c.equal("append", await client.append(b"added", b"-end"), True)
    c.equal("prepend", await client.prepend(b"added", b"start-"), True)
    c.equal("append and prepend", await client.get(b"added"), b"start-3-end")
    c.equal("append absent", await client.append(b"absent", b"x"), False)
    c.equal("prepend absent", await client.prepend(b"absent", b"x"), False)

    value, token = await client.gets(b"added")
    c.equal("gets value", value, b"start-3-end")
    c.equal("cas", await client.cas(b"added", b"swapped", token), True)
    c.equal("cas with an old token", await client.cas(b"added", b"lost", token), False)
    c.equal("cas absent", await client.cas(b"absent", b"lost", token), False)
    c.equal("cas kept the winner", await client.get(b"added"), b"swapped")
    c.equal("gets absent", await client.gets(b"absent"), (None, None))

    c.equal("delete", await client.delete(b"added"), True)
    c.equal("delete absent", await client.delete(b"added"), False)
    c.equal("get deleted", await client.get(b"added"), None)
    c.equal("get with a default", await client.get(b"added", b"default"), b"default")

    for key in (b"k" * 250, b"punctuation~!@#$%^&*()", "schlüssel-時間".encode()):
        c.equal(f"set key {key[:12]!r}", await client.set(key, b"odd"), True)
        c.equal(f"get key {key[:12]!r}", await client.get(key), b"odd")


async def retrieval(client):
    keys = [b"multi-%d" % n for n in range(100)]
    for n, key in enumerate(keys):
        await client.set(key, b"%d" % n * n)
    c.equal("multi_get", await client.multi_get(*keys), tuple(b"%d" % n * n for n in range(100)))
    c.equal("multi_get with misses", await client.multi_get(b"multi-1", b"absent", b"multi-2"),
            (b"1", None, b"22"))


async def counters(client):
    await client.set(b"counter", b"10")
    c.equal("incr", await client.incr(b"counter", 5), 15)
    c.equal("decr", await client.decr(b"counter", 6), 9)
    c.equal("decr stops at zero", await client.decr(b"counter", 100), 0)
    await raises("incr absent", "NOT_FOUND", client.incr(b"absent"))
    await client.set(b"counter", b"abc")
    await raises("incr text", "CLIENT_ERROR cannot increment or decrement non-numeric value",
                 client.incr(b"counter"))


async def errors(client):
    await client.set(b"key", b"old")
    await raises("too large", "SERVER_ERROR object too large for cache", client.set(b"key", c.TOO_LARGE))
    c.equal("a refused set removes the old value", await client.get(b"key"), None)
    c.equal("usable after an error", await client.set(b"key", b"new"), True)
    for what, key in (("long key", b"k" * 251), ("space", b"a b"), ("empty key", b"")):
        try:
            await client.set(key, b"")
        except ValidationException:
            c.true(f"the client refuses a {what}", True)
        else:
            c.true(f"the client refuses a {what}", False)


async def statistics(client):
    number = bytes(await client.version())
    c.true("version is three numbers", all(part.isdigit() for part in number.split(b".")))
    stats = await client.stats()
    c.equal("stats version", stats[b"version"], number)
    c.stat_names("stats", stats, b"pid", b"uptime", b"curr_items", b"cmd_get", b"limit_maxbytes")
    settings = await client.stats(b"settings")
    c.equal("settings item_size_max", settings[b"item_size_max"], b"1048576")
    items = await client.stats(b"items")
    c.true("stats items", any(name.endswith(b":number") for name in items))
    slabs = await client.stats(b"slabs")
    c.stat_names("stats slabs", slabs, b"active_slabs", b"total_malloced")


async def flush(client):
    await client.set(b"flushed", b"1")
    c.equal("flush_all", await client.flush_all(), None)
    c.equal("flushed", await client.get(b"flushed"), None)
    c.equal("set after flush_all", await client.set(b"flushed", b"2"), True)
    c.equal("get after flush_all", await client.get(b"flushed"), b"2")


async def concurrency(client):
    await client.set(b"shared", b"0")
    await asyncio.gather(*(client.incr(b"shared") for _ in range(500)))
    c.equal("500 increments from one pool", await client.get(b"shared"), b"500")


async def expiry(client):
    await client.set(b"lasting", b"1")
    await client.set(b"short", b"1", exptime=c.SHORT_TTL_S)
    await client.set(b"touched", b"1", exptime=c.SHORT_TTL_S)
    c.equal("before expiry", await client.get(b"short"), b"1")
    c.equal("touch", await client.touch(b"touched", 100), True)
    c.equal("touch absent", await client.touch(b"absent", 100), False)
    c.wait_for_expiry()
    c.equal("expired", await client.get(b"short"), None)
    c.equal("touched lives on", await client.get(b"touched"), b"1")
    c.equal("no expiry lives on", await client.get(b"lasting"), b"1")


async def raises(what, line, call):
    """Awaits `call`, which must fail with the server's `line`."""
    try:
        await call
    except ClientException as error:
        c.true(what, line in str(error))
    else:
        c.true(f"{what} fails", False)


asyncio.run(main())
