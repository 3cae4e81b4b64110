import io.etcd.jetcd.Client;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.kv.TxnResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.PutOption;
import io.grpc.Status.Code;
import java.util.List;
import java.util.Map;

/** Cases of transactions. */
final class TxnCases {
    static void add(Map<String, Cases.Case> cases) {
        cases.put("KVTest.txn_if_greater", TxnCases::greater);
        cases.put("KVTest.txn_if_less", TxnCases::less);
        cases.put("KVTest.txn_if_equal", TxnCases::equal);
        cases.put("KVTest.txn_if_not_equal", TxnCases::notEqual);
        cases.put("KVTest.txn_if_revisions", TxnCases::revisions);
        cases.put("KVTest.txn_without_if", TxnCases::unconditional);
        cases.put("KVTest.txn_get_and_delete_by_prefix", TxnCases::getAndDelete);
        cases.put("KVTest.txn_nested", TxnCases::nested);
        cases.put("KVTest.txn_of_one_key_twice", TxnCases::twice);
        cases.put("KVTest.txn_with_lease", TxnCases::leased);
        cases.put("KVNamespaceTest.txn", TxnCases::namespace);
    }

    private static Cmp value(String key, Cmp.Op op, String value) {
        return new Cmp(Help.bytes(key), op, CmpTarget.value(Help.bytes(value)));
    }

    private static Op put(String key, String value) {
        return Op.put(Help.bytes(key), Help.bytes(value), PutOption.DEFAULT);
    }

    private static Op get(String key) {
        return Op.get(Help.bytes(key), GetOption.DEFAULT);
    }

    /** Compares the value of a key, puts "then" or "else" to it, and tells what is there afterwards. */
    private static String decided(Client client, String key, Cmp.Op op, String value) throws Throwable {
        TxnResponse answer = Help.await(client.getKVClient().txn()
            .If(value(key, op, value)).Then(put(key, "then")).Else(put(key, "else")).commit());
        String found = Help.value(client, key);
        Help.equal(answer.isSucceeded(), "then".equals(found));
        Help.equal(1, answer.getPutResponses().size());
        return found;
    }

    private static void greater(Client client) throws Throwable {
        Help.put(client, "txn/greater", "b");
        Help.equal("then", decided(client, "txn/greater", Cmp.Op.GREATER, "a"));
        Help.equal("else", decided(client, "txn/greater", Cmp.Op.GREATER, "z"));
    }

    private static void less(Client client) throws Throwable {
        Help.put(client, "txn/less", "b");
        Help.equal("then", decided(client, "txn/less", Cmp.Op.LESS, "c"));
        Help.equal("else", decided(client, "txn/less", Cmp.Op.LESS, "a"));
    }

    private static void equal(Client client) throws Throwable {
        Help.put(client, "txn/equal", "b");
        Help.equal("then", decided(client, "txn/equal", Cmp.Op.EQUAL, "b"));
        Help.equal("else", decided(client, "txn/equal", Cmp.Op.EQUAL, "b"));
        // No value compares with that of a key that is not there.
        Help.equal("else", decided(client, "txn/equal/nothing", Cmp.Op.EQUAL, ""));
    }

    private static void notEqual(Client client) throws Throwable {
        Help.put(client, "txn/not-equal", "b");
        Help.equal("then", decided(client, "txn/not-equal", Cmp.Op.NOT_EQUAL, "c"));
        Help.equal("else", decided(client, "txn/not-equal", Cmp.Op.NOT_EQUAL, "then"));
    }

    private static void revisions(Client client) throws Throwable {
        long first = Help.put(client, "txn/revisions", "1");
        long second = Help.put(client, "txn/revisions", "2");
        var key = Help.bytes("txn/revisions");
        TxnResponse answer = Help.await(client.getKVClient().txn()
            .If(new Cmp(key, Cmp.Op.EQUAL, CmpTarget.createRevision(first)),
                new Cmp(key, Cmp.Op.EQUAL, CmpTarget.modRevision(second)),
                new Cmp(key, Cmp.Op.EQUAL, CmpTarget.version(2)),
                new Cmp(Help.bytes("txn/nothing"), Cmp.Op.EQUAL, CmpTarget.version(0)))
            .Then(get("txn/revisions")).commit());
        Help.check(answer.isSucceeded(), "all of it holds");
        Help.equal(List.of("txn/revisions=2"), Help.pairs(answer.getGetResponses().get(0).getKvs()));
    }

    private static void unconditional(Client client) throws Throwable {
        TxnResponse answer = Help.await(client.getKVClient().txn()
            .Then(put("txn/all/a", "1"), put("txn/all/b", "2"), get("txn/all/a")).commit());
        Help.check(answer.isSucceeded(), "nothing was asked");
        KeyValue first = answer.getGetResponses().get(0).getKvs().get(0);
        Help.equal("1", Help.text(first.getValue()));
        Help.equal(answer.getHeader().getRevision(), first.getModRevision());
        KeyValue second = Help.get(client, "txn/all/b", GetOption.DEFAULT).get(0);
        Help.equal(first.getModRevision(), second.getModRevision());
    }

    private static void getAndDelete(Client client) throws Throwable {
        Help.put(client, "txn/delete/a", "1");
        Help.put(client, "txn/delete/b", "2");
        var prefix = Help.bytes("txn/delete/");
        TxnResponse answer = Help.await(client.getKVClient().txn()
            .Then(Op.get(prefix, GetOption.builder().isPrefix(true).build()),
                Op.delete(prefix, DeleteOption.builder().isPrefix(true).withPrevKV(true).build()))
            .commit());
        List<String> both = List.of("txn/delete/a=1", "txn/delete/b=2");
        Help.equal(both, Help.pairs(answer.getGetResponses().get(0).getKvs()));
        Help.equal(both, Help.pairs(answer.getDeleteResponses().get(0).getPrevKvs()));
        Help.equal(null, Help.value(client, "txn/delete/a"));
    }

    private static void nested(Client client) throws Throwable {
        Help.put(client, "txn/nested", "a");
        Op inner = Op.txn(
            new Cmp[] {value("txn/nested", Cmp.Op.EQUAL, "other")},
            new Op[] {put("txn/nested", "inner then")},
            new Op[] {put("txn/nested", "inner else")});
        TxnResponse answer = Help.await(client.getKVClient().txn()
            .If(value("txn/nested", Cmp.Op.GREATER, "0")).Then(inner, get("txn/nested")).commit());
        Help.check(answer.isSucceeded(), "the outer condition holds");
        Help.check(!answer.getTxnResponses().get(0).isSucceeded(), "the inner condition does not");
        Help.equal(1, answer.getTxnResponses().get(0).getPutResponses().size());
        Help.equal(List.of("txn/nested=inner else"), Help.pairs(answer.getGetResponses().get(0).getKvs()));
        Help.equal("inner else", Help.value(client, "txn/nested"));
    }

    private static void twice(Client client) throws Throwable {
        Help.refused(Code.INVALID_ARGUMENT, "duplicate key given in txn request",
            client.getKVClient().txn().Then(put("txn/twice", "1"), put("txn/twice", "2")).commit());
        Help.equal(null, Help.value(client, "txn/twice"));
    }

    private static void leased(Client client) throws Throwable {
        long lease = Help.lease(client, 60);
        PutOption option = PutOption.builder().withLeaseId(lease).build();
        Help.await(client.getKVClient().txn()
            .Then(Op.put(Help.bytes("txn/leased"), Help.bytes("1"), option)).commit());
        Help.equal(lease, Help.get(client, "txn/leased", GetOption.DEFAULT).get(0).getLease());
        Help.await(client.getLeaseClient().revoke(lease));
        Help.equal(null, Help.value(client, "txn/leased"));
        Help.refused(Code.NOT_FOUND, "requested lease not found", client.getKVClient().txn()
            .Then(Op.put(Help.bytes("txn/leased"), Help.bytes("2"), option)).commit());
    }

    private static void namespace(Client client) throws Throwable {
        try (Client inside = Help.client().namespace(Help.bytes("txn-namespace/")).build()) {
            Help.put(inside, "a", "1");
            TxnResponse answer = Help.await(inside.getKVClient().txn()
                .If(value("a", Cmp.Op.EQUAL, "1"))
                .Then(put("b", "2"), get("a"), Op.delete(Help.bytes("a"), DeleteOption.builder().withPrevKV(true).build()))
                .commit());
            Help.check(answer.isSucceeded(), "the condition holds");
            Help.equal(List.of("a=1"), Help.pairs(answer.getGetResponses().get(0).getKvs()));
            Help.equal(List.of("a=1"), Help.pairs(answer.getDeleteResponses().get(0).getPrevKvs()));
        }
        Help.equal("2", Help.value(client, "txn-namespace/b"));
        Help.equal(null, Help.value(client, "txn-namespace/a"));
    }

    private TxnCases() {}
}
