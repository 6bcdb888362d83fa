import java.util.Arrays;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Shared by the Java client programs: the servers' addresses and counted assertions. */
final class Checks {
    static final String HOST = System.getenv("SERVER_HOST");
    static final int PORT = Integer.parseInt(System.getenv("SERVER_PORT"));

    /** Both are below the 1 MiB item limit; the larger one leaves room only for the item's overhead. */
    static final byte[] BINARY = bytes(256);
    static final byte[] LARGE = bytes(1000000);
    static final byte[] NEAR_LIMIT = bytes(1024 * 1024 - 1024);
    static final byte[] TOO_LARGE = bytes(1024 * 1024 + 1);

    /** Two seconds is the shortest time to live that cannot end at the very next tick of the clock. */
    static final int SHORT_TTL_S = 2;

    private static int passed = 0;
    private static String context = "";

    interface Action {
        void run() throws Exception;
    }

    /** Names the mode (protocol, transport) that the next checks run in. */
    static void within(String name) {
        context = name.isEmpty() ? "" : name + ": ";
    }

    static void equal(String what, Object actual, Object expected) {
        boolean same = actual instanceof byte[] && expected instanceof byte[]
            ? Arrays.equals((byte[]) actual, (byte[]) expected)
            : Objects.equals(actual, expected);
        if (!same) {
            fail(what + ": expected " + brief(expected) + ", got " + brief(actual));
        }
        passed++;
    }

    static void holds(String what, boolean condition) {
        equal(what, condition, true);
    }

    /** Checks that the action throws an exception whose chain of causes contains `text`. */
    static void raises(String what, String text, Action action) {
        try {
            action.run();
        } catch (Exception error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                if (String.valueOf(each.getMessage()).contains(text)) {
                    passed++;
                    return;
                }
            }
            fail(what + ": expected an error that says " + text + ", got " + error);
        }
        fail(what + ": expected an error that says " + text);
    }

    /** Polls until a condition holds that a server's background threads establish. */
    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + 5_000_000_000L;
        while (!condition.call() && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        holds(what, condition.call());
    }

    static void waitForExpiry() throws InterruptedException {
        Thread.sleep(SHORT_TTL_S * 1000 + 200);
    }

    /** Runs a program's checks, and exits even if the client has left threads. */
    static void run(String client, Class<?> library, Action checks) {
        try {
            checks.run();
        } catch (Exception error) {
            error.printStackTrace();
            fail("unexpected " + error);
        }
        Matcher jar = Pattern.compile("-([0-9.]+)\\.jar$")
            .matcher(library.getProtectionDomain().getCodeSource().getLocation().getPath());
        String version = jar.find() ? jar.group(1) : "unknown";
        System.out.println(client + " " + version + ": " + passed + " checks passed");
        System.exit(0);
    }

    private static void fail(String message) {
        System.err.println("FAILED after " + passed + " checks: " + context + message);
        System.exit(1);
    }

    private static byte[] bytes(int length) {
        byte[] result = new byte[length];
        for (int n = 0; n < length; n++) {
            result[n] = (byte) n;
        }
        return result;
    }

    private static String brief(Object value) {
        String text = value instanceof byte[] ? Arrays.toString((byte[]) value) : String.valueOf(value);
        return text.length() <= 200 ? text : text.substring(0, 200) + "... (" + text.length() + " characters)";
    }

    private Checks() {
    }
}
