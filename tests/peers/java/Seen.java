import io.etcd.jetcd.Client;
import io.etcd.jetcd.Watch;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.watch.WatchEvent;
import io.etcd.jetcd.watch.WatchResponse;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** What a watch sees. An event is "+key=value" or "-key", with " was value" behind it if the watch wants that. */
final class Seen implements Watch.Listener {
    private static final long EVENT_SECONDS = 10;

    private final BlockingQueue<String> events = new LinkedBlockingQueue<>();
    private final CompletableFuture<WatchResponse> created = new CompletableFuture<>();
    private final BlockingQueue<Long> progress = new LinkedBlockingQueue<>();
    final CompletableFuture<Throwable> failed = new CompletableFuture<>();
    final CompletableFuture<Void> completed = new CompletableFuture<>();
    final boolean previous;
    Watch.Watcher watcher;

    private Seen(boolean previous) {
        this.previous = previous;
    }

    /** Watches, and returns when the server says that the watch is there. */
    static Seen of(Client client, String key, WatchOption.Builder option) throws Throwable {
        Seen seen = begin(client, key, option);
        Help.await(seen.created);
        return seen;
    }

    /** Watches, and does not wait until the watch is there. */
    static Seen begin(Client client, String key, WatchOption.Builder option) {
        WatchOption built = option.withCreateNotify(true).build();
        Seen seen = new Seen(built.isPrevKV());
        seen.watcher = client.getWatchClient().watch(Help.bytes(key), built, seen);
        return seen;
    }

    @Override
    public void onNext(WatchResponse response) {
        if (response.isCreatedNotify()) {
            created.complete(response);
        }
        if (response.isProgressNotify()) {
            progress.add(response.getHeader().getRevision());
        }
        for (WatchEvent event : response.getEvents()) {
            events.add(described(event));
        }
    }

    @Override
    public void onError(Throwable error) {
        created.completeExceptionally(error);
        failed.complete(error);
    }

    @Override
    public void onCompleted() {
        completed.complete(null);
    }

    private String described(WatchEvent event) {
        String key = Help.text(event.getKeyValue().getKey());
        String text = switch (event.getEventType()) {
            case PUT -> "+" + key + "=" + Help.text(event.getKeyValue().getValue());
            case DELETE -> "-" + key;
            default -> "?" + key;
        };
        return previous ? text + " was " + Help.text(event.getPrevKV().getValue()) : text;
    }

    /** The next events must be these. */
    void sees(String... expected) throws InterruptedException {
        for (String event : expected) {
            Help.equal(event, events.poll(EVENT_SECONDS, TimeUnit.SECONDS));
        }
    }

    /** No event may come for a while. */
    void seesNothing() throws InterruptedException {
        Help.equal(null, events.poll(300, TimeUnit.MILLISECONDS));
    }

    /** The revision up to which the server says that all has been seen. */
    long progressed() throws InterruptedException {
        Long revision = progress.poll(EVENT_SECONDS, TimeUnit.SECONDS);
        Help.check(revision != null, "the watch heard of no progress");
        return revision;
    }
}
