import io.etcd.jetcd.Client;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * Cases of jetcd against the server at KINDRED_ADDRESS, named after jetcd's own test classes. A line says that a case
 * begins, has passed, or has failed and why. KINDRED_LIST lists the cases, KINDRED_CASES has those to run.
 */
public final class Cases {
    private static final long LIMIT_SECONDS = 20;
    static final String ADDRESS = System.getenv().getOrDefault("KINDRED_ADDRESS", "");

    /** What a case does. It fails if it throws anything. */
    interface Case {
        void run(Client client) throws Throwable;
    }

    public static void main(String[] arguments) {
        Map<String, Case> cases = new LinkedHashMap<>();
        KvCases.add(cases);
        TxnCases.add(cases);
        WatchCases.add(cases);
        LeaseCases.add(cases);
        LockCases.add(cases);
        ServerCases.add(cases);
        if (System.getenv("KINDRED_LIST") != null) {
            cases.keySet().forEach(name -> say("case " + name));
            System.exit(0);
        }
        for (String name : System.getenv("KINDRED_CASES").split(",")) {
            say("begins " + name);
            try {
                within(LIMIT_SECONDS, cases.get(name));
                say("passed " + name);
            } catch (Throwable error) {
                say("failed " + name + " " + Help.describe(error));
            }
        }
        // A case that is late may still have threads.
        System.exit(0);
    }

    /** Runs a case with a client of its own, and closes the client. */
    private static void within(long seconds, Case run) throws Throwable {
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try (Client client = Help.client().build()) {
                run.run(client);
                done.complete(null);
            } catch (Throwable error) {
                done.completeExceptionally(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        Help.unwrapped(done, seconds);
    }

    private static void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }
}
