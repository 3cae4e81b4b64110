import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseGrantResponse;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.lease.LeaseTimeToLiveResponse;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.support.Observers;
import io.grpc.Status.Code;
import io.grpc.stub.StreamObserver;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Cases of leases. */
final class LeaseCases {
    static void add(Map<String, Cases.Case> cases) {
        cases.put("LeaseTest.grant", LeaseCases::grant);
        cases.put("LeaseTest.grant_of_a_time_that_is_too_long", LeaseCases::grantTooLong);
        cases.put("LeaseTest.revoke", LeaseCases::revoke);
        cases.put("LeaseTest.revoke_what_does_not_exist", LeaseCases::revokeUnknown);
        cases.put("LeaseTest.expires", LeaseCases::expires);
        cases.put("LeaseTest.keep_alive_once", LeaseCases::keepAliveOnce);
        cases.put("LeaseTest.keep_alive", LeaseCases::keepAlive);
        cases.put("LeaseTest.keep_alive_of_several", LeaseCases::keepAliveOfSeveral);
        cases.put("LeaseTest.keep_alive_of_a_revoked_lease", LeaseCases::keepAliveOfRevoked);
        cases.put("LeaseTest.time_to_live", LeaseCases::timeToLive);
        cases.put("LeaseTest.time_to_live_with_keys", LeaseCases::timeToLiveWithKeys);
        cases.put("LeaseTest.time_to_live_of_what_does_not_exist", LeaseCases::timeToLiveOfUnknown);
        cases.put("LeaseTest.put_takes_a_key_from_its_lease", LeaseCases::putWithoutLease);
    }

    private static LeaseTimeToLiveResponse left(Client client, long lease) throws Throwable {
        LeaseOption keys = LeaseOption.builder().withAttachedKeys().build();
        return Help.await(client.getLeaseClient().timeToLive(lease, keys));
    }

    private static void grant(Client client) throws Throwable {
        LeaseGrantResponse first = Help.await(client.getLeaseClient().grant(5));
        Help.equal(5L, first.getTTL());
        LeaseGrantResponse second = Help.await(client.getLeaseClient().grant(7, 10, TimeUnit.SECONDS));
        Help.equal(7L, second.getTTL());
        Help.check(first.getID() != second.getID(), "each lease has an id of its own");
    }

    private static void grantTooLong(Client client) throws Throwable {
        Help.refused(Code.OUT_OF_RANGE, "too large lease TTL", client.getLeaseClient().grant(9_000_000_001L));
    }

    private static void revoke(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        Help.put(client, "lease/revoke/a", "1", lease);
        Help.put(client, "lease/revoke/b", "2", lease);
        Seen seen = Seen.of(client, "lease/revoke/", WatchOption.builder().isPrefix(true));
        Help.await(client.getLeaseClient().revoke(lease));
        Help.equal(null, Help.value(client, "lease/revoke/a"));
        seen.sees("-lease/revoke/a", "-lease/revoke/b");
    }

    private static void revokeUnknown(Client client) throws Throwable {
        Help.refused(Code.NOT_FOUND, "requested lease not found", client.getLeaseClient().revoke(123456789));
    }

    private static void expires(Client client) throws Throwable {
        long lease = Help.lease(client, 1);
        Seen seen = Seen.of(client, "lease/expires", WatchOption.builder());
        Help.put(client, "lease/expires", "1", lease);
        seen.sees("+lease/expires=1", "-lease/expires");
        Help.equal(null, Help.value(client, "lease/expires"));
    }

    private static void keepAliveOnce(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        LeaseKeepAliveResponse alive = Help.await(client.getLeaseClient().keepAliveOnce(lease));
        Help.equal(lease, alive.getID());
        Help.equal(60L, alive.getTTL());
    }

    private static void keepAlive(Client client) throws Throwable {
        long lease = Help.lease(client, 2);
        Help.put(client, "lease/alive", "1", lease);
        BlockingQueue<Long> alive = new LinkedBlockingQueue<>();
        CloseableClient keeper = client.getLeaseClient().keepAlive(lease, heard(alive));
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(4);
        for (int times = 0; times < 2 || System.nanoTime() < end; times++) {
            Help.equal(2L, alive.poll(5, TimeUnit.SECONDS));
        }
        Help.equal("1", Help.value(client, "lease/alive"));
        keeper.close();
    }

    private static void keepAliveOfSeveral(Client client) throws Throwable {
        long first = Help.lease(client, 30);
        long second = Help.lease(client, 40);
        BlockingQueue<Long> alive = new LinkedBlockingQueue<>();
        BlockingQueue<Long> other = new LinkedBlockingQueue<>();
        client.getLeaseClient().keepAlive(first, heard(alive));
        client.getLeaseClient().keepAlive(second, heard(other));
        Help.equal(30L, alive.poll(5, TimeUnit.SECONDS));
        Help.equal(40L, other.poll(5, TimeUnit.SECONDS));
    }

    private static StreamObserver<LeaseKeepAliveResponse> heard(BlockingQueue<Long> alive) {
        return Observers.observer(response -> alive.add(response.getTTL()));
    }

    private static void keepAliveOfRevoked(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        Help.await(client.getLeaseClient().revoke(lease));
        CompletableFuture<Throwable> failed = new CompletableFuture<>();
        StreamObserver<LeaseKeepAliveResponse> observer =
            Observers.<LeaseKeepAliveResponse>builder().onError(failed::complete).build();
        client.getLeaseClient().keepAlive(lease, observer);
        Throwable error = Help.await(failed);
        Help.check(error.getMessage().contains("requested lease not found"), "keeping it alive failed with " + error);
    }

    private static void timeToLive(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        LeaseTimeToLiveResponse left = Help.await(client.getLeaseClient().timeToLive(lease, LeaseOption.DEFAULT));
        Help.equal(60L, left.getGrantedTTL());
        Help.check(left.getTTL() > 30 && left.getTTL() <= 60, "there are " + left.getTTL() + " s left");
        Help.equal(List.of(), left.getKeys());
    }

    private static void timeToLiveWithKeys(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        Help.put(client, "lease/keys/b", "1", lease);
        Help.put(client, "lease/keys/a", "2", lease);
        List<String> keys = left(client, lease).getKeys().stream().map(Help::text).sorted().collect(Collectors.toList());
        Help.equal(List.of("lease/keys/a", "lease/keys/b"), keys);
    }

    private static void timeToLiveOfUnknown(Client client) throws Throwable {
        Help.equal(-1L, left(client, 123456789).getTTL());
    }

    private static void putWithoutLease(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        Help.put(client, "lease/taken", "1", lease);
        long other = Help.lease(client, 60);
        Help.put(client, "lease/taken", "2", other);
        Help.equal(List.of(), left(client, lease).getKeys());
        Help.await(client.getLeaseClient().revoke(lease));
        Help.equal("2", Help.value(client, "lease/taken"));
        Help.await(client.getKVClient().put(Help.bytes("lease/taken"), Help.bytes("3"), PutOption.DEFAULT));
        Help.await(client.getLeaseClient().revoke(other));
        Help.equal("3", Help.value(client, "lease/taken"));
    }

    private LeaseCases() {}
}
