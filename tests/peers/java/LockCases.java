import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Election;
import io.etcd.jetcd.Lock;
import io.etcd.jetcd.election.CampaignResponse;
import io.etcd.jetcd.election.LeaderKey;
import io.etcd.jetcd.election.LeaderResponse;
import io.etcd.jetcd.election.NoLeaderException;
import io.etcd.jetcd.election.NotLeaderException;
import io.etcd.jetcd.lock.LockResponse;
import io.grpc.Status.Code;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Cases of the services for locks and elections. */
final class LockCases {
    static void add(Map<String, Cases.Case> cases) {
        cases.put("LockTest.lock_without_lease", LockCases::withoutLease);
        cases.put("LockTest.lock_with_lease", LockCases::withLease);
        cases.put("LockTest.lock_with_lease_that_does_not_exist", LockCases::withUnknownLease);
        cases.put("LockTest.two_wait", LockCases::twoWait);
        cases.put("LockTest.lock_of_a_revoked_lease_is_free", LockCases::revoked);
        cases.put("LockTest.lock_of_an_expired_lease_is_free", LockCases::expired);
        cases.put("LockTest.lock_in_a_namespace", LockCases::inNamespace);
        cases.put("ElectionTest.campaign", LockCases::campaign);
        cases.put("ElectionTest.campaign_waits", LockCases::campaignWaits);
        cases.put("ElectionTest.proclaim", LockCases::proclaim);
        cases.put("ElectionTest.proclaim_of_who_does_not_lead", LockCases::proclaimAfterResign);
        cases.put("ElectionTest.no_leader", LockCases::noLeader);
        cases.put("ElectionTest.observe", LockCases::observe);
        cases.put("ElectionTest.resign", LockCases::resign);
        cases.put("ElectionTest.election_in_a_namespace", LockCases::electionInNamespace);
    }

    private static CompletableFuture<LockResponse> lock(Client client, String name, long lease) {
        return client.getLockClient().lock(Help.bytes(name), lease);
    }

    private static void withoutLease(Client client) throws Throwable {
        ByteSequence key = Help.await(lock(client, "lock/bare", 0)).getKey();
        Help.check(Help.text(key).startsWith("lock/bare/"), "the key is " + Help.text(key));
        Help.check(Help.value(client, Help.text(key)) != null, "the lock has its key");
        Help.await(client.getLockClient().unlock(key));
        Help.equal(null, Help.value(client, Help.text(key)));
    }

    private static void withLease(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        ByteSequence key = Help.await(lock(client, "lock/leased", lease)).getKey();
        Help.equal("lock/leased/" + Long.toHexString(lease), Help.text(key));
        // Who has the lock may ask for it again.
        Help.equal(key, Help.await(lock(client, "lock/leased", lease)).getKey());
        Help.await(client.getLockClient().unlock(key));
    }

    private static void withUnknownLease(Client client) throws Throwable {
        Help.refused(Code.UNKNOWN, "requested lease not found", lock(client, "lock/unknown", 123456));
    }

    private static void twoWait(Client client) throws Throwable {
        Lock locks = client.getLockClient();
        ByteSequence first = Help.await(lock(client, "lock/wait", Help.lease(client, 60))).getKey();
        CompletableFuture<LockResponse> second = lock(client, "lock/wait", Help.lease(client, 60));
        Help.waits(second);
        CompletableFuture<LockResponse> third = lock(client, "lock/wait", Help.lease(client, 60));
        Help.waits(third);
        Help.await(locks.unlock(first));
        ByteSequence key = Help.await(second).getKey();
        Help.waits(third);
        Help.await(locks.unlock(key));
        Help.await(locks.unlock(Help.await(third).getKey()));
    }

    private static void revoked(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        Help.await(lock(client, "lock/revoked", lease));
        CompletableFuture<LockResponse> second = lock(client, "lock/revoked", Help.lease(client, 60));
        Help.waits(second);
        Help.await(client.getLeaseClient().revoke(lease));
        Help.await(second);
    }

    private static void expired(Client client) throws Throwable {
        Help.await(lock(client, "lock/expired", Help.lease(client, 1)));
        Help.await(lock(client, "lock/expired", Help.lease(client, 60)));
    }

    private static void inNamespace(Client client) throws Throwable {
        try (Client inside = Help.client().namespace(Help.bytes("lock-namespace/")).build()) {
            ByteSequence key = Help.await(lock(inside, "lock", Help.lease(client, 60))).getKey();
            Help.check(Help.text(key).startsWith("lock/"), "the key is " + Help.text(key));
            CompletableFuture<LockResponse> second = lock(client, "lock-namespace/lock", Help.lease(client, 60));
            Help.waits(second);
            Help.await(inside.getLockClient().unlock(key));
            Help.await(second);
        }
    }

    /** Leads an election with a lease of its own. */
    private static LeaderKey lead(Client client, String name, String value) throws Throwable {
        return Help.await(running(client, name, value)).getLeader();
    }

    private static CompletableFuture<CampaignResponse> running(Client client, String name, String value) throws Throwable {
        return client.getElectionClient().campaign(Help.bytes(name), Help.lease(client, 60), Help.bytes(value));
    }

    private static String leader(Client client, String name) throws Throwable {
        return Help.text(Help.await(client.getElectionClient().leader(Help.bytes(name))).getKv().getValue());
    }

    private static void campaign(Client client) throws Throwable {
        LeaderKey key = lead(client, "election/campaign", "first");
        Help.equal("election/campaign", Help.text(key.getName()));
        Help.equal("election/campaign/" + Long.toHexString(key.getLease()), Help.text(key.getKey()));
        Help.check(key.getRevision() > 0, "the key has a revision");
        Help.equal("first", leader(client, "election/campaign"));
        Help.equal("first", Help.value(client, Help.text(key.getKey())));
    }

    private static void campaignWaits(Client client) throws Throwable {
        LeaderKey first = lead(client, "election/wait", "first");
        CompletableFuture<CampaignResponse> second = running(client, "election/wait", "second");
        Help.waits(second);
        Help.await(client.getLeaseClient().revoke(first.getLease()));
        Help.await(second);
        Help.equal("second", leader(client, "election/wait"));
    }

    private static void proclaim(Client client) throws Throwable {
        LeaderKey key = lead(client, "election/proclaim", "first");
        Help.await(client.getElectionClient().proclaim(key, Help.bytes("second")));
        Help.equal("second", leader(client, "election/proclaim"));
    }

    private static void proclaimAfterResign(Client client) throws Throwable {
        LeaderKey key = lead(client, "election/over", "first");
        Help.await(client.getElectionClient().resign(key));
        try {
            Help.await(client.getElectionClient().proclaim(key, Help.bytes("second")));
        } catch (NotLeaderException expected) {
            return;
        }
        throw new AssertionError("it was not refused");
    }

    private static void noLeader(Client client) throws Throwable {
        try {
            leader(client, "election/nobody");
        } catch (NoLeaderException expected) {
            return;
        }
        throw new AssertionError("it was not refused");
    }

    private static void resign(Client client) throws Throwable {
        LeaderKey first = lead(client, "election/resign", "first");
        CompletableFuture<CampaignResponse> second = running(client, "election/resign", "second");
        Help.waits(second);
        Help.await(client.getElectionClient().resign(first));
        Help.await(second);
        Help.equal("second", leader(client, "election/resign"));
    }

    /** Leaders that an observer hears of. */
    private static final class Leaders implements Election.Listener {
        final BlockingQueue<String> heard = new LinkedBlockingQueue<>();

        @Override
        public void onNext(LeaderResponse response) {
            heard.add(Help.text(response.getKv().getValue()));
        }

        @Override
        public void onError(Throwable error) {
            heard.add("failed: " + error);
        }

        @Override
        public void onCompleted() {}

        void hears(String leader) throws InterruptedException {
            Help.equal(leader, heard.poll(10, TimeUnit.SECONDS));
        }
    }

    private static void observe(Client client) throws Throwable {
        Leaders leaders = new Leaders();
        client.getElectionClient().observe(Help.bytes("election/observe"), leaders);
        LeaderKey first = lead(client, "election/observe", "first");
        leaders.hears("first");
        Help.await(client.getElectionClient().proclaim(first, Help.bytes("first again")));
        leaders.hears("first again");
        CompletableFuture<CampaignResponse> second = running(client, "election/observe", "second");
        Help.waits(second);
        Help.await(client.getElectionClient().resign(first));
        leaders.hears("second");
    }

    private static void electionInNamespace(Client client) throws Throwable {
        try (Client inside = Help.client().namespace(Help.bytes("election-namespace/")).build()) {
            LeaderKey key = lead(inside, "election", "first");
            Help.equal("first", leader(client, "election-namespace/election"));
            Help.await(inside.getElectionClient().proclaim(key, Help.bytes("second")));
            LeaderResponse found = Help.await(inside.getElectionClient().leader(Help.bytes("election")));
            Help.equal("second", Help.text(found.getKv().getValue()));
            Help.check(Help.text(found.getKv().getKey()).startsWith("election/"), "the key is inside");
            Help.await(inside.getElectionClient().resign(key));
        }
    }

    private LockCases() {}
}
