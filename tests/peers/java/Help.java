import static java.nio.charset.StandardCharsets.UTF_8;

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.ClientBuilder;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.PutOption;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;

/** What the cases have in common: text as bytes, answers with a deadline, and comparisons. */
final class Help {
    private static final long ANSWER_SECONDS = 10;

    static ClientBuilder client() {
        return Client.builder().endpoints("http://" + Cases.ADDRESS);
    }

    static ByteSequence bytes(String text) {
        return ByteSequence.from(text, UTF_8);
    }

    static String text(ByteSequence bytes) {
        return bytes.toString(UTF_8);
    }

    /** The keys and values, as "key=value". */
    static List<String> pairs(List<KeyValue> found) {
        return found.stream().map(kv -> text(kv.getKey()) + "=" + text(kv.getValue())).collect(Collectors.toList());
    }

    static <T> T await(CompletableFuture<T> answer) throws Throwable {
        return unwrapped(answer, ANSWER_SECONDS);
    }

    /** The answer, or what it failed with. */
    static <T> T unwrapped(CompletableFuture<T> answer, long seconds) throws Throwable {
        try {
            return answer.get(seconds, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            throw error.getCause();
        } catch (TimeoutException error) {
            throw new AssertionError("nothing came within " + seconds + " s");
        }
    }

    static long put(Client client, String key, String value) throws Throwable {
        return await(client.getKVClient().put(bytes(key), bytes(value))).getHeader().getRevision();
    }

    static void put(Client client, String key, String value, long lease) throws Throwable {
        PutOption leased = PutOption.builder().withLeaseId(lease).build();
        await(client.getKVClient().put(bytes(key), bytes(value), leased));
    }

    static List<KeyValue> get(Client client, String key, GetOption option) throws Throwable {
        return await(client.getKVClient().get(bytes(key), option)).getKvs();
    }

    /** The value of a key, or null if there is no such key. */
    static String value(Client client, String key) throws Throwable {
        List<KeyValue> found = get(client, key, GetOption.DEFAULT);
        return found.isEmpty() ? null : text(found.get(0).getValue());
    }

    /** A new lease of so many seconds. */
    static long lease(Client client, long seconds) throws Throwable {
        return await(client.getLeaseClient().grant(seconds)).getID();
    }

    static void equal(Object expected, Object found) {
        check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** The answer must be a refusal of this code, and its text must have these words. */
    static void refused(Status.Code code, String words, CompletableFuture<?> answer) throws Throwable {
        try {
            await(answer);
        } catch (StatusRuntimeException error) {
            equal(code, error.getStatus().getCode());
            check(String.valueOf(error.getMessage()).contains(words), "the refusal says " + error.getMessage());
            return;
        }
        throw new AssertionError("it was not refused");
    }

    /** The value of a key over a connection that was cut: what was on its way may fail, and soon no more does. */
    static String valueAfterCut(Client client, String key) throws Throwable {
        for (int tries = 0; ; tries++) {
            try {
                return value(client, key);
            } catch (StatusRuntimeException error) {
                if (tries == 20) {
                    throw error;
                }
                Thread.sleep(50);
            }
        }
    }

    /** The answer must not come for a while. Somebody waits who should not be served yet. */
    static void waits(CompletableFuture<?> answer) throws Throwable {
        try {
            answer.get(300, TimeUnit.MILLISECONDS);
        } catch (TimeoutException expected) {
            return;
        }
        throw new AssertionError("it did not wait");
    }

    static String describe(Throwable error) {
        return error + " " + Arrays.stream(error.getStackTrace())
            .filter(at -> !at.getClassName().contains("."))
            .map(StackTraceElement::toString)
            .limit(4)
            .collect(Collectors.joining(" "));
    }

    private Help() {}
}
