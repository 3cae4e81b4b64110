import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.common.exception.CompactedException;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import java.util.Map;

/** Cases of watches. */
final class WatchCases {
    static void add(Map<String, Cases.Case> cases) {
        cases.put("WatchTest.watch_on_put", WatchCases::put);
        cases.put("WatchTest.watch_on_delete", WatchCases::delete);
        cases.put("WatchTest.watch_a_prefix", WatchCases::prefix);
        cases.put("WatchTest.watch_a_range", WatchCases::range);
        cases.put("WatchTest.several_watches_of_a_client", WatchCases::several);
        cases.put("WatchTest.several_watches_of_a_key", WatchCases::sameKey);
        cases.put("WatchTest.no_put", WatchCases::noPut);
        cases.put("WatchTest.no_delete", WatchCases::noDelete);
        cases.put("WatchTest.previous_values", WatchCases::previous);
        cases.put("WatchTest.watch_from_a_revision", WatchCases::fromRevision);
        cases.put("WatchTest.watch_of_a_transaction", WatchCases::transaction);
        cases.put("WatchTest.watch_of_a_compacted_revision", WatchCases::compacted);
        cases.put("WatchTest.cancel", WatchCases::cancel);
        cases.put("WatchTest.close_the_client", WatchCases::close);
        cases.put("WatchTest.request_progress", WatchCases::requestProgress);
        cases.put("WatchTest.require_leader", WatchCases::requireLeader);
        cases.put("WatchResumeTest.watch_goes_on_after_a_cut", WatchCases::resume);
        cases.put("WatchNamespaceTest.watch", WatchCases::namespace);
    }

    private static WatchOption.Builder option() {
        return WatchOption.builder();
    }

    private static void delete(Client client, String key) throws Throwable {
        Help.await(client.getKVClient().delete(Help.bytes(key)));
    }

    private static void put(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/put", option());
        Help.put(client, "watch/put", "1");
        Help.put(client, "watch/put/other", "1");
        Help.put(client, "watch/put", "2");
        seen.sees("+watch/put=1", "+watch/put=2");
    }

    private static void delete(Client client) throws Throwable {
        Help.put(client, "watch/delete", "1");
        Seen seen = Seen.of(client, "watch/delete", option());
        delete(client, "watch/delete");
        seen.sees("-watch/delete");
    }

    private static void prefix(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/prefix/", option().isPrefix(true));
        Help.put(client, "watch/prefix/b", "1");
        Help.put(client, "watch/prefix0", "outside");
        Help.put(client, "watch/prefix/a", "2");
        delete(client, "watch/prefix/b");
        seen.sees("+watch/prefix/b=1", "+watch/prefix/a=2", "-watch/prefix/b");
        seen.seesNothing();
    }

    private static void range(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/range/b", option().withRange(Help.bytes("watch/range/d")));
        for (String name : new String[] {"a", "b", "c", "d"}) {
            Help.put(client, "watch/range/" + name, "");
        }
        seen.sees("+watch/range/b=", "+watch/range/c=");
        seen.seesNothing();
    }

    private static void several(Client client) throws Throwable {
        Seen first = Seen.of(client, "watch/several/a", option());
        Seen second = Seen.of(client, "watch/several/b", option());
        Seen all = Seen.of(client, "watch/several/", option().isPrefix(true));
        Help.put(client, "watch/several/a", "1");
        Help.put(client, "watch/several/b", "2");
        first.sees("+watch/several/a=1");
        second.sees("+watch/several/b=2");
        all.sees("+watch/several/a=1", "+watch/several/b=2");
        first.seesNothing();
    }

    private static void sameKey(Client client) throws Throwable {
        Seen first = Seen.of(client, "watch/same", option());
        Seen second = Seen.of(client, "watch/same", option());
        Help.put(client, "watch/same", "1");
        first.sees("+watch/same=1");
        second.sees("+watch/same=1");
        first.watcher.close();
        Help.put(client, "watch/same", "2");
        second.sees("+watch/same=2");
        first.seesNothing();
    }

    private static void noPut(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/no-put", option().withNoPut(true));
        Help.put(client, "watch/no-put", "1");
        delete(client, "watch/no-put");
        seen.sees("-watch/no-put");
        seen.seesNothing();
    }

    private static void noDelete(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/no-delete", option().withNoDelete(true));
        Help.put(client, "watch/no-delete", "1");
        delete(client, "watch/no-delete");
        Help.put(client, "watch/no-delete", "2");
        seen.sees("+watch/no-delete=1", "+watch/no-delete=2");
    }

    private static void previous(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/previous", option().withPrevKV(true));
        Help.put(client, "watch/previous", "1");
        Help.put(client, "watch/previous", "2");
        delete(client, "watch/previous");
        seen.sees("+watch/previous=1 was ", "+watch/previous=2 was 1", "-watch/previous was 2");
    }

    private static void fromRevision(Client client) throws Throwable {
        Help.put(client, "watch/history/a", "before");
        long first = Help.put(client, "watch/history/a", "1");
        Help.put(client, "watch/history/b", "2");
        delete(client, "watch/history/a");
        Seen seen = Seen.of(client, "watch/history/", option().isPrefix(true).withRevision(first));
        Help.put(client, "watch/history/c", "3");
        seen.sees("+watch/history/a=1", "+watch/history/b=2", "-watch/history/a", "+watch/history/c=3");
    }

    private static void transaction(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/txn/", option().isPrefix(true));
        Help.await(client.getKVClient().txn()
            .Then(Op.put(Help.bytes("watch/txn/b"), Help.bytes("1"), PutOption.DEFAULT),
                Op.put(Help.bytes("watch/txn/a"), Help.bytes("2"), PutOption.DEFAULT))
            .commit());
        seen.sees("+watch/txn/b=1", "+watch/txn/a=2");
    }

    private static void compacted(Client client) throws Throwable {
        long first = Help.put(client, "watch/compacted", "1");
        long second = Help.put(client, "watch/compacted", "2");
        Help.await(client.getKVClient().compact(second));
        Seen seen = Seen.begin(client, "watch/compacted", option().withRevision(first));
        Throwable error = Help.await(seen.failed);
        Help.check(error instanceof CompactedException, "the watch failed with " + error);
        long least = ((CompactedException) error).getCompactedRevision();
        Help.check(first < least && least <= second, "there is history from " + least);
        // A watch from there on has all of it.
        Seen.of(client, "watch/compacted", option().withRevision(least)).sees("+watch/compacted=2");
    }

    private static void cancel(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/cancel", option());
        Help.put(client, "watch/cancel", "1");
        seen.sees("+watch/cancel=1");
        seen.watcher.close();
        Help.await(seen.completed);
        Help.check(seen.watcher.isClosed(), "the watch is closed");
        Help.put(client, "watch/cancel", "2");
        seen.seesNothing();
    }

    private static void close(Client client) throws Throwable {
        Seen seen;
        try (Client other = Help.client().build()) {
            seen = Seen.of(other, "watch/close", option());
        }
        Help.await(seen.completed);
        Help.put(client, "watch/close", "1");
        seen.seesNothing();
    }

    private static void requestProgress(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/progress", option().withProgressNotify(true));
        long revision = Help.put(client, "watch/progress/other", "1");
        // An answer may be of a moment before the write was seen.
        for (int tries = 0; tries < 20; tries++) {
            seen.watcher.requestProgress();
            if (seen.progressed() >= revision) {
                return;
            }
        }
        throw new AssertionError("the progress stays below " + revision);
    }

    private static void requireLeader(Client client) throws Throwable {
        Seen seen = Seen.of(client, "watch/leader", option().withRequireLeader(true));
        Help.put(client, "watch/leader", "1");
        seen.sees("+watch/leader=1");
    }

    private static void resume(Client client) throws Throwable {
        try (Cut way = new Cut(); Client over = Client.builder().endpoints(way.url()).build()) {
            Seen seen = Seen.of(over, "watch/resume", option());
            for (int number = 1; number <= 3; number++) {
                Help.put(client, "watch/resume", number + " before");
                seen.sees("+watch/resume=" + number + " before");
                way.cut();
                // Nobody watches at this moment, so the watch must come back to the revision that it has seen.
                Help.put(client, "watch/resume", number + " meanwhile");
                seen.sees("+watch/resume=" + number + " meanwhile");
            }
            seen.seesNothing();
        }
    }

    private static void namespace(Client client) throws Throwable {
        try (Client inside = Help.client().namespace(Help.bytes("watch-namespace/")).build()) {
            Seen one = Seen.of(inside, "a", option().withPrevKV(true));
            ByteSequence zero = ByteSequence.from(new byte[] {0});
            Seen all = Seen.of(inside, "\0", option().withRange(zero));
            Help.put(client, "watch-namespace/a", "1");
            Help.put(client, "watch-namespace0", "outside");
            Help.put(inside, "b", "2");
            delete(client, "watch-namespace/a");
            one.sees("+a=1 was ", "-a was 1");
            all.sees("+a=1", "+b=2", "-a");
            all.seesNothing();
        }
    }

    private WatchCases() {}
}
