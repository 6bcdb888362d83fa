import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import net.rubyeye.xmemcached.CASOperation;
import net.rubyeye.xmemcached.Counter;
import net.rubyeye.xmemcached.GetsResponse;
import net.rubyeye.xmemcached.KeyIterator;
import net.rubyeye.xmemcached.MemcachedClient;
import net.rubyeye.xmemcached.XMemcachedClientBuilder;
import net.rubyeye.xmemcached.command.BinaryCommandFactory;
import net.rubyeye.xmemcached.command.TextCommandFactory;
import net.rubyeye.xmemcached.transcoders.SerializingTranscoder;

/** xmemcached: text and binary protocol over TCP. */
public final class Xmemcached {
    public static void main(String[] arguments) {
        Checks.run("xmemcached", MemcachedClient.class, Xmemcached::check);
    }

    private static void check() throws Exception {
        Map<String, MemcachedClient> clients = new LinkedHashMap<>();
        for (String name : List.of("text", "binary")) {
            boolean binary = name.equals("binary");
            Checks.within(name);
            MemcachedClient client = connect(binary);
            clients.put(name, client);
            storage(client, binary);
            retrieval(client);
            counters(client);
            refusals(client, binary);
            noreply(client);
            concurrency(client);
            statistics(client);
            if (!binary) {
                textOnly(client);
            }
            flush(client);
        }
        for (Map.Entry<String, MemcachedClient> each : clients.entrySet()) {
            Checks.within(each.getKey());
            beforeExpiry(each.getValue(), each.getKey());
        }
        Checks.waitForExpiry();
        for (Map.Entry<String, MemcachedClient> each : clients.entrySet()) {
            Checks.within(each.getKey());
            afterExpiry(each.getValue(), each.getKey());
            each.getValue().shutdown();
        }
        Checks.within("");
    }

    private static MemcachedClient connect(boolean binary) throws Exception {
        XMemcachedClientBuilder builder =
            new XMemcachedClientBuilder(List.of(new InetSocketAddress(Checks.HOST, Checks.PORT)));
        builder.setCommandFactory(binary ? new BinaryCommandFactory() : new TextCommandFactory());
        builder.setOpTimeout(5000);
        SerializingTranscoder transcoder = new SerializingTranscoder(16 * 1024 * 1024);
        // Values reach the server at the sizes that the checks name.
        transcoder.setCompressionThreshold(16 * 1024 * 1024);
        builder.setTranscoder(transcoder);
        return builder.build();
    }

    private static void storage(MemcachedClient client, boolean binary) throws Exception {
        Map<String, byte[]> values = new LinkedHashMap<>();
        values.put("empty", new byte[0]);
        values.put("short", "value".getBytes());
        values.put("binary", Checks.BINARY);
        values.put("line ends", "a\r\nEND\r\nb".getBytes());
        values.put("large", Checks.LARGE);
        values.put("near the limit", Checks.NEAR_LIMIT);
        for (Map.Entry<String, byte[]> each : values.entrySet()) {
            Checks.equal("set " + each.getKey(), client.set("key", 0, each.getValue()), true);
            byte[] found = client.get("key");
            Checks.equal("get " + each.getKey(), found, each.getValue());
        }
        Checks.equal("set text", client.set("key", 0, "grüße 時間"), true);
        Checks.equal("get text", client.get("key"), "grüße 時間");
        Checks.equal("set number", client.set("key", 0, 1L << 62), true);
        Checks.equal("get number", client.get("key"), 1L << 62);

        Checks.equal("add absent", client.add("added", 0, "1"), true);
        Checks.equal("add present", client.add("added", 0, "2"), false);
        Checks.equal("add left the value", client.get("added"), "1");
        Checks.equal("replace present", client.replace("added", 0, "3"), true);
        Checks.equal("replace absent", client.replace("absent", 0, "3"), false);
        Checks.equal("append", client.append("added", "-end"), true);
        Checks.equal("prepend", client.prepend("added", "start-"), true);
        Checks.equal("append and prepend", client.get("added"), "start-3-end");
        Checks.equal("append absent", client.append("absent", "x"), false);
        Checks.equal("prepend absent", client.prepend("absent", "x"), false);

        GetsResponse<String> found = client.gets("added");
        Checks.equal("gets value", found.getValue(), "start-3-end");
        Checks.equal("cas", client.cas("added", 0, "swapped", found.getCas()), true);
        Checks.equal("cas with an old token", client.cas("added", 0, "lost", found.getCas()), false);
        Checks.equal("cas absent", client.cas("absent", 0, "lost", found.getCas()), false);
        Checks.equal("cas kept the winner", client.get("added"), "swapped");
        Checks.equal("cas by operation", client.cas("added", new CASOperation<String>() {
            @Override
            public int getMaxTries() {
                return 1;
            }

            @Override
            public String getNewValue(long token, String value) {
                return value + " again";
            }
        }), true);
        Checks.equal("cas by operation stored", client.get("added"), "swapped again");
        if (binary) {
            Checks.equal("delete with an old token", client.delete("added", found.getCas(), 5000L), false);
        }
        Checks.equal("delete", client.delete("added"), true);
        Checks.equal("delete absent", client.delete("added"), false);
        Checks.equal("get deleted", client.get("added"), null);

        for (String key : List.of("k".repeat(250), "punctuation~!@#$%^&*()", "schlüssel-時間")) {
            Checks.equal("set key " + key.substring(0, 10), client.set(key, 0, "odd"), true);
            Checks.equal("get key " + key.substring(0, 10), client.get(key), "odd");
        }
    }

    private static void retrieval(MemcachedClient client) throws Exception {
        Map<String, String> values = new HashMap<>();
        for (int n = 0; n < 100; n++) {
            values.put("multi-" + n, "value of " + n);
            Checks.equal("set multi-" + n, client.set("multi-" + n, 0, "value of " + n), true);
        }
        List<String> keys = new ArrayList<>(values.keySet());
        keys.add("absent");
        Checks.equal("get of many", client.get(keys), values);
        Map<String, GetsResponse<String>> found = client.gets(keys);
        Set<Long> tokens = new HashSet<>();
        found.values().forEach(each -> tokens.add(each.getCas()));
        Checks.equal("gets of many", found.size(), 100);
        Checks.equal("gets of many tokens differ", tokens.size(), 100);
    }

    private static void counters(MemcachedClient client) throws Exception {
        client.set("counter", 0, "10");
        Checks.equal("incr", client.incr("counter", 5), 15L);
        Checks.equal("decr", client.decr("counter", 6), 9L);
        Checks.equal("decr pads to the old length", client.get("counter"), "9 ");
        Checks.equal("decr stops at zero", client.decr("counter", 100), 0L);
        Checks.equal("incr with a default", client.incr("counted", 1, 77), 77L);
        Checks.equal("incr over the default", client.incr("counted", 1, 77), 78L);
        client.delete("counted");
        Counter counter = client.getCounter("counted", 5);
        Checks.equal("counter increment", counter.incrementAndGet(), 6L);
        Checks.equal("counter add", counter.addAndGet(-2), 4L);
        Checks.equal("counter get", counter.get(), 4L);
        client.delete("counted");
        client.set("counter", 0, "abc");
        Checks.raises("incr text", "non-numeric", () -> client.incr("counter", 1));
    }

    private static void refusals(MemcachedClient client, boolean binary) throws Exception {
        client.set("key", 0, "old");
        Checks.raises("too large", binary ? "Value is too big" : "object too large for cache",
            () -> client.set("key", 0, Checks.TOO_LARGE));
        Checks.equal("a refused set removes the old value", client.get("key"), null);
        Checks.equal("usable after an error", client.set("key", 0, "new"), true);
        Checks.raises("the client refuses a long key", "too long", () -> client.get("k".repeat(251)));
        if (binary) {
            // The binary protocol sends a key's length, so a key may have any bytes.
            Checks.equal("set key with a space", client.set("a b", 0, "spaced"), true);
            Checks.equal("get key with a space", client.get("a b"), "spaced");
        } else {
            Checks.raises("the client refuses a space", "invalid characters", () -> client.get("a b"));
        }
    }

    private static void noreply(MemcachedClient client) throws Exception {
        List<String> keys = new ArrayList<>();
        Map<String, String> values = new HashMap<>();
        for (int n = 0; n < 1000; n++) {
            keys.add("quiet-" + n);
            values.put("quiet-" + n, "" + n);
            client.setWithNoReply("quiet-" + n, 0, "" + n);
        }
        Checks.equal("noreply sets", client.get(keys), values);
        client.appendWithNoReply("quiet-0", "+");
        client.prependWithNoReply("quiet-0", "+");
        client.addWithNoReply("quiet-1", 0, "not stored");
        client.replaceWithNoReply("quiet-2", 0, "replaced");
        client.incrWithNoReply("quiet-3", 39);
        client.decrWithNoReply("quiet-4", 1);
        client.deleteWithNoReply("quiet-5");
        Checks.equal("noreply mix", client.get(keys.subList(0, 6)), Map.of("quiet-0", "+0+", "quiet-1", "1",
            "quiet-2", "replaced", "quiet-3", "42", "quiet-4", "3"));
    }

    private static void concurrency(MemcachedClient client) throws Exception {
        // Gets of many threads go over one connection, where the client merges them into multi-gets.
        client.set("shared", 0, "0");
        ConcurrentLinkedQueue<Object> failures = new ConcurrentLinkedQueue<>();
        List<Thread> threads = new ArrayList<>();
        for (int worker = 0; worker < 8; worker++) {
            Thread thread = new Thread(() -> {
                try {
                    for (int n = 0; n < 200; n++) {
                        client.incr("shared", 1);
                        if (!("" + (n + 100)).equals(client.get("quiet-" + (n + 100)))) {
                            failures.add("quiet-" + (n + 100));
                        }
                    }
                } catch (Exception error) {
                    failures.add(error);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Checks.equal("gets and increments of 8 threads", new ArrayList<>(failures), List.of());
        Checks.equal("no increment is lost", client.get("shared"), "1600");
    }

    private static void statistics(MemcachedClient client) throws Exception {
        InetSocketAddress server = client.getAvailableServers().iterator().next();
        String version = client.getVersions().get(server);
        Checks.holds("version is three numbers", version.matches("\\d+\\.\\d+\\.\\d+"));
        Map<String, String> stats = client.getStats().get(server);
        Checks.equal("stats version", stats.get("version"), version);
        for (String name : List.of("pid", "uptime", "time", "curr_items", "cmd_get", "limit_maxbytes", "threads")) {
            Checks.holds("stats " + name + " is a number", stats.get(name).matches("\\d+"));
        }
        Checks.equal("settings item_size_max",
            client.getStatsByItem("settings").get(server).get("item_size_max"), "1048576");
        Checks.holds("stats items",
            client.getStatsByItem("items").get(server).keySet().stream().anyMatch(name -> name.endsWith(":number")));
        Checks.holds("stats slabs", client.getStatsByItem("slabs").get(server).containsKey("active_slabs"));
    }

    @SuppressWarnings("deprecation")
    /** Verbosity, and the list of keys that the client builds from `stats items` and `stats cachedump`. */
    private static void textOnly(MemcachedClient client) throws Exception {
        InetSocketAddress server = client.getAvailableServers().iterator().next();
        client.setLoggingLevelVerbosity(server, 0);
        Checks.equal("usable after verbosity", client.set("key", 0, "1"), true);
        // A unique size, so that the item is alone in its class. memcached dumps only its cold
        // items, and takes a moment to let a new one cool.
        client.set("listed", 0, "l".repeat(3000));
        Checks.eventually("key iterator", () -> {
            Set<String> found = new HashSet<>();
            KeyIterator iterator = client.getKeyIterator(server);
            try {
                while (iterator.hasNext()) {
                    found.add(iterator.next());
                }
            } catch (NoSuchElementException error) {
                // The iterator throws this for an answer without items.
            }
            iterator.close();
            return found.contains("listed");
        });
    }

    private static void flush(MemcachedClient client) throws Exception {
        client.set("flushed", 0, "1");
        client.flushAll();
        Checks.equal("flushed", client.get("flushed"), null);
        Checks.equal("set after flush", client.set("flushed", 0, "2"), true);
        Checks.equal("get after flush", client.get("flushed"), "2");
    }

    private static void beforeExpiry(MemcachedClient client, String name) throws Exception {
        client.set("lasting-" + name, 0, "1");
        client.set("short-" + name, Checks.SHORT_TTL_S, "1");
        client.set("touched-" + name, Checks.SHORT_TTL_S, "1");
        client.set("dated-" + name, (int) (System.currentTimeMillis() / 1000) + 3600, "1");
        Checks.equal("before expiry", client.get("short-" + name), "1");
        Checks.equal("touch", client.touch("touched-" + name, 100), true);
        Checks.equal("touch absent", client.touch("absent", 100), false);
        if (name.equals("binary")) {
            client.set("shortened", 0, "1");
            Checks.equal("get and touch", client.getAndTouch("shortened", Checks.SHORT_TTL_S), "1");
            Checks.equal("get and touch absent", client.getAndTouch("absent", 1), null);
        }
    }

    private static void afterExpiry(MemcachedClient client, String name) throws Exception {
        Checks.equal("expired", client.get("short-" + name), null);
        Checks.equal("shortened", client.get("shortened"), null);
        for (String each : List.of("lasting-", "touched-", "dated-")) {
            Checks.equal(each + " lives on", client.get(each + name), "1");
        }
    }

    private Xmemcached() {
    }
}
