import io.etcd.jetcd.Client;
import io.etcd.jetcd.cluster.Member;
import io.etcd.jetcd.cluster.MemberListResponse;
import io.etcd.jetcd.maintenance.SnapshotResponse;
import io.etcd.jetcd.maintenance.StatusResponse;
import io.etcd.jetcd.support.Observers;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;

/** Cases of the server itself, and of how a client comes to it. */
final class ServerCases {
    /** Where etcd's database file has its magic number, and which that is. */
    private static final int MAGIC_AT = 16;
    private static final int MAGIC = 0xED0CDAED;

    static void add(Map<String, Cases.Case> cases) {
        cases.put("MaintenanceTest.status_member", ServerCases::status);
        cases.put("MaintenanceTest.list_alarms", ServerCases::alarms);
        cases.put("MaintenanceTest.snapshot_to_a_stream", ServerCases::snapshotToStream);
        cases.put("MaintenanceTest.snapshot_to_an_observer", ServerCases::snapshotToObserver);
        cases.put("MaintenanceTest.defragment_member", ServerCases::defragment);
        cases.put("MaintenanceTest.hash_kv", ServerCases::hash);
        cases.put("ClusterClientTest.list_members", ServerCases::members);
        cases.put("ClientConnectionManagerTest.several_endpoints", ServerCases::severalEndpoints);
        cases.put("ClientConnectionManagerTest.ip_target", ServerCases::target);
        cases.put("ClientConnectionManagerTest.a_cut_connection_is_made_anew", ServerCases::cut);
    }

    private static String url() {
        return "http://" + Cases.ADDRESS;
    }

    private static void status(Client client) throws Throwable {
        Help.put(client, "status", "1");
        StatusResponse status = Help.await(client.getMaintenanceClient().statusMember(url()));
        Help.check(status.getVersion().startsWith("3."), "the version is " + status.getVersion());
        Help.check(status.getDbSize() > 0, "the database has a size");
        Help.equal(status.getHeader().getMemberId(), status.getLeader());
        Help.equal(List.of(), status.getErrorList());
        Help.check(!status.isLearner(), "it is no learner");
    }

    private static void alarms(Client client) throws Throwable {
        Help.equal(List.of(), Help.await(client.getMaintenanceClient().listAlarms()).getAlarms());
    }

    private static void snapshotToStream(Client client) throws Throwable {
        Help.put(client, "snapshot", "1");
        ByteArrayOutputStream file = new ByteArrayOutputStream();
        long length = Help.await(client.getMaintenanceClient().snapshot(file));
        Help.equal(length, (long) file.size());
        int magic = ByteBuffer.wrap(file.toByteArray()).order(ByteOrder.LITTLE_ENDIAN).getInt(MAGIC_AT);
        Help.equal(MAGIC, magic);
    }

    private static void snapshotToObserver(Client client) throws Throwable {
        AtomicLong length = new AtomicLong();
        AtomicLong remaining = new AtomicLong(-1);
        CompletableFuture<Void> done = new CompletableFuture<>();
        client.getMaintenanceClient().snapshot(Observers.<SnapshotResponse>builder()
            .onNext(part -> {
                length.addAndGet(part.getBlob().size());
                remaining.set(part.getRemainingBytes());
            })
            .onError(done::completeExceptionally)
            .onCompleted(() -> done.complete(null))
            .build());
        Help.await(done);
        Help.check(length.get() > 4096, "the snapshot has " + length.get() + " bytes");
        Help.equal(0L, remaining.get());
    }

    private static void defragment(Client client) throws Throwable {
        Help.await(client.getMaintenanceClient().defragmentMember(url()));
    }

    private static void hash(Client client) throws Throwable {
        Help.put(client, "hash", "1");
        int first = Help.await(client.getMaintenanceClient().hashKV(url(), 0)).getHash();
        Help.equal(first, Help.await(client.getMaintenanceClient().hashKV(url(), 0)).getHash());
        Help.put(client, "hash", "2");
        int second = Help.await(client.getMaintenanceClient().hashKV(url(), 0)).getHash();
        Help.check(first != second, "the hash changes with what is there");
    }

    private static void members(Client client) throws Throwable {
        MemberListResponse list = Help.await(client.getClusterClient().listMember());
        Help.equal(1, list.getMembers().size());
        Member member = list.getMembers().get(0);
        Help.equal(list.getHeader().getMemberId(), member.getId());
        Help.check(!member.isLearner(), "it is no learner");
        Help.check(!member.getName().isEmpty(), "it has a name");
        Help.equal(1, member.getClientURIs().size());
    }

    private static void severalEndpoints(Client client) throws Throwable {
        try (Cut way = new Cut(); Client both = Client.builder().endpoints(way.url(), url()).build()) {
            for (int number = 0; number < 8; number++) {
                Help.put(both, "endpoints/" + number, "1");
            }
            way.close();
            for (int number = 0; number < 8; number++) {
                Help.equal("1", Help.valueAfterCut(both, "endpoints/" + number));
            }
        }
    }

    private static void target(Client client) throws Throwable {
        try (Client there = Client.builder().target("ip:///" + Cases.ADDRESS).build()) {
            Help.put(there, "target", "1");
        }
        Help.equal("1", Help.value(client, "target"));
    }

    private static void cut(Client client) throws Throwable {
        try (Cut way = new Cut(); Client over = Client.builder().endpoints(way.url()).build()) {
            for (int number = 0; number < 3; number++) {
                Help.put(over, "cut", String.valueOf(number));
                way.cut();
                Help.equal(String.valueOf(number), Help.valueAfterCut(over, "cut"));
            }
        }
    }

    private ServerCases() {}
}
