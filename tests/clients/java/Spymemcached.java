import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.internal.OperationFuture;
import net.spy.memcached.transcoders.SerializingTranscoder;

/** spymemcached: text and binary protocol over TCP. */
public final class Spymemcached {
    public static void main(String[] arguments) {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SLF4JLogger");
        Checks.run("spymemcached", MemcachedClient.class, Spymemcached::check);
    }

    private static void check() throws Exception {
        Map<String, MemcachedClient> clients = new LinkedHashMap<>();
        for (Protocol protocol : Protocol.values()) {
            String name = protocol == Protocol.TEXT ? "text" : "binary";
            boolean binary = protocol == Protocol.BINARY;
            Checks.within(name);
            MemcachedClient client = connect(protocol);
            clients.put(name, client);
            storage(client, binary);
            retrieval(client);
            counters(client);
            refusals(client, binary);
            pipeline(client);
            statistics(client);
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
            Checks.holds("shutdown", each.getValue().shutdown(5, TimeUnit.SECONDS));
        }
        Checks.within("");
    }

    private static MemcachedClient connect(Protocol protocol) throws Exception {
        SerializingTranscoder transcoder = new SerializingTranscoder();
        // Values reach the server at the sizes that the checks name.
        transcoder.setCompressionThreshold(16 * 1024 * 1024);
        return new MemcachedClient(
            new ConnectionFactoryBuilder().setProtocol(protocol).setOpTimeout(5000).setTranscoder(transcoder).build(),
            List.of(new InetSocketAddress(Checks.HOST, Checks.PORT)));
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
            Checks.equal("set " + each.getKey(), client.set("key", 0, each.getValue()).get(), true);
            Checks.equal("get " + each.getKey(), client.get("key"), each.getValue());
        }
        Checks.equal("set text", client.set("key", 0, "grüße 時間").get(), true);
        Checks.equal("get text", client.get("key"), "grüße 時間");
        Checks.equal("set number", client.set("key", 0, 1L << 62).get(), true);
        Checks.equal("get number", client.get("key"), 1L << 62);

        Checks.equal("add absent", client.add("added", 0, "1").get(), true);
        Checks.equal("add present", client.add("added", 0, "2").get(), false);
        Checks.equal("add left the value", client.get("added"), "1");
        Checks.equal("replace present", client.replace("added", 0, "3").get(), true);
        Checks.equal("replace absent", client.replace("absent", 0, "3").get(), false);
        Checks.equal("append", client.append("added", "-end").get(), true);
        Checks.equal("prepend", client.prepend("added", "start-").get(), true);
        Checks.equal("append and prepend", client.get("added"), "start-3-end");
        Checks.equal("append absent", client.append("absent", "x").get(), false);
        Checks.equal("prepend absent", client.prepend("absent", "x").get(), false);

        CASValue<Object> found = client.gets("added");
        Checks.equal("gets value", found.getValue(), "start-3-end");
        Checks.equal("cas", client.cas("added", found.getCas(), "swapped"), CASResponse.OK);
        Checks.equal("cas with an old token", client.cas("added", found.getCas(), "lost"), CASResponse.EXISTS);
        Checks.equal("cas absent", client.cas("absent", found.getCas(), "lost"), CASResponse.NOT_FOUND);
        Checks.equal("cas kept the winner", client.get("added"), "swapped");
        Checks.equal("gets absent", client.gets("absent"), null);
        if (binary) {
            Checks.equal("delete with an old token", client.delete("added", found.getCas()).get(), false);
        }
        Checks.equal("delete", client.delete("added").get(), true);
        Checks.equal("delete absent", client.delete("added").get(), false);
        Checks.equal("get deleted", client.get("added"), null);

        for (String key : List.of("k".repeat(250), "punctuation~!@#$%^&*()", "schlüssel-時間")) {
            Checks.equal("set key " + key.substring(0, 10), client.set(key, 0, "odd").get(), true);
            Checks.equal("get key " + key.substring(0, 10), client.get(key), "odd");
        }
    }

    private static void retrieval(MemcachedClient client) throws Exception {
        Map<String, Object> values = new HashMap<>();
        for (int n = 0; n < 100; n++) {
            values.put("multi-" + n, "value of " + n);
            Checks.equal("set multi-" + n, client.set("multi-" + n, 0, "value of " + n).get(), true);
        }
        List<String> keys = new ArrayList<>(values.keySet());
        keys.add("absent");
        Checks.equal("getBulk", client.getBulk(keys), values);
    }

    private static void counters(MemcachedClient client) throws Exception {
        client.set("counter", 0, "10").get();
        Checks.equal("incr", client.incr("counter", 5), 15L);
        Checks.equal("decr", client.decr("counter", 6), 9L);
        Checks.equal("decr pads to the old length", client.get("counter"), "9 ");
        Checks.equal("decr stops at zero", client.decr("counter", 100), 0L);
        Checks.equal("incr absent", client.incr("absent", 1), -1L);
        Checks.equal("incr with a default", client.incr("counted", 1, 77), 77L);
        Checks.equal("incr over the default", client.incr("counted", 1, 77), 78L);
        client.delete("counted").get();
        client.set("counter", 0, "abc").get();
        // The client does not distinguish a refusal from a missing key.
        Checks.equal("incr text", client.incr("counter", 1), -1L);
    }

    private static void refusals(MemcachedClient client, boolean binary) throws Exception {
        client.set("key", 0, "old").get();
        if (binary) {
            OperationFuture<Boolean> refused = client.set("key", 0, Checks.TOO_LARGE);
            Checks.equal("too large", refused.get(), false);
            Checks.holds("too large says", refused.getStatus().getMessage().contains("Too large"));
        } else {
            // After a server error the client closes the connection, and reconnects after some seconds.
            MemcachedClient other = connect(Protocol.TEXT);
            Checks.raises("too large", "object too large for cache", () -> other.set("key", 0, Checks.TOO_LARGE).get());
            other.shutdown();
        }
        Checks.equal("a refused set removes the old value", client.get("key"), null);
        Checks.equal("usable after an error", client.set("key", 0, "new").get(), true);
        Checks.raises("the client refuses a long key", "Key is too long", () -> client.get("k".repeat(251)));
    }

    private static void pipeline(MemcachedClient client) throws Exception {
        List<Future<Boolean>> stores = new ArrayList<>();
        for (int n = 0; n < 1000; n++) {
            stores.add(client.set("piped-" + n, 0, Integer.toString(n)));
        }
        int stored = 0;
        for (Future<Boolean> each : stores) {
            stored += each.get() ? 1 : 0;
        }
        Checks.equal("1000 sets at once", stored, 1000);
        // The client merges gets that wait in its queue into one multi-get.
        List<Future<Object>> gets = new ArrayList<>();
        for (int n = 0; n < 1000; n++) {
            gets.add(client.asyncGet("piped-" + n));
        }
        int right = 0;
        for (int n = 0; n < 1000; n++) {
            right += Integer.toString(n).equals(gets.get(n).get()) ? 1 : 0;
        }
        Checks.equal("1000 gets at once", right, 1000);
    }

    private static void statistics(MemcachedClient client) {
        SocketAddress server = client.getAvailableServers().iterator().next();
        String version = client.getVersions().get(server);
        Checks.holds("version is three numbers", version.matches("\\d+\\.\\d+\\.\\d+"));
        Map<String, String> stats = client.getStats().get(server);
        Checks.equal("stats version", stats.get("version"), version);
        for (String name : List.of("pid", "uptime", "time", "curr_items", "cmd_get", "limit_maxbytes", "threads")) {
            Checks.holds("stats " + name + " is a number", stats.get(name).matches("\\d+"));
        }
        Checks.equal("settings item_size_max", client.getStats("settings").get(server).get("item_size_max"), "1048576");
        Checks.holds("stats items",
            client.getStats("items").get(server).keySet().stream().anyMatch(name -> name.endsWith(":number")));
        Checks.holds("stats slabs", client.getStats("slabs").get(server).containsKey("active_slabs"));
    }

    private static void flush(MemcachedClient client) throws Exception {
        client.set("flushed", 0, "1").get();
        Checks.equal("flush", client.flush().get(), true);
        Checks.equal("flushed", client.get("flushed"), null);
        Checks.equal("set after flush", client.set("flushed", 0, "2").get(), true);
        Checks.equal("get after flush", client.get("flushed"), "2");
    }

    private static void beforeExpiry(MemcachedClient client, String name) throws Exception {
        client.set("lasting-" + name, 0, "1").get();
        client.set("short-" + name, Checks.SHORT_TTL_S, "1").get();
        client.set("touched-" + name, Checks.SHORT_TTL_S, "1").get();
        client.set("dated-" + name, (int) (System.currentTimeMillis() / 1000) + 3600, "1").get();
        Checks.equal("before expiry", client.get("short-" + name), "1");
        Checks.equal("touch", client.touch("touched-" + name, 100).get(), true);
        Checks.equal("touch absent", client.touch("absent", 100).get(), false);
        if (name.equals("binary")) {
            client.set("shortened", 0, "1").get();
            Checks.equal("get and touch", client.getAndTouch("shortened", Checks.SHORT_TTL_S).getValue(), "1");
            Checks.equal("get and touch absent", client.getAndTouch("absent", 1), null);
        }
    }

    private static void afterExpiry(MemcachedClient client, String name) {
        Checks.equal("expired", client.get("short-" + name), null);
        Checks.equal("shortened", client.get("shortened"), null);
        for (String each : List.of("lasting-", "touched-", "dated-")) {
            Checks.equal(each + " lives on", client.get(each + name), "1");
        }
    }

    private Spymemcached() {
    }
}
