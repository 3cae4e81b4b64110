import static java.nio.charset.StandardCharsets.UTF_8;

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.kv.DeleteResponse;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.kv.PutResponse;
import io.etcd.jetcd.options.CompactOption;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.GetOption.SortOrder;
import io.etcd.jetcd.options.GetOption.SortTarget;
import io.etcd.jetcd.options.PutOption;
import io.grpc.Status.Code;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Cases of single keys and ranges. */
final class KvCases {
    static void add(Map<String, Cases.Case> cases) {
        cases.put("KVTest.put", KvCases::put);
        cases.put("KVTest.put_with_previous", KvCases::putWithPrevious);
        cases.put("KVTest.put_with_lease_that_does_not_exist", KvCases::putWithUnknownLease);
        cases.put("KVTest.put_of_a_large_value", KvCases::putOfALargeValue);
        cases.put("KVTest.put_of_an_empty_value", KvCases::putOfAnEmptyValue);
        cases.put("KVTest.put_without_a_key", KvCases::putWithoutAKey);
        cases.put("KVTest.get", KvCases::get);
        cases.put("KVTest.get_at_a_revision", KvCases::getAtARevision);
        cases.put("KVTest.get_at_a_revision_to_come", KvCases::getAtARevisionToCome);
        cases.put("KVTest.get_sorted_by_prefix", KvCases::getSortedByPrefix);
        cases.put("KVTest.get_with_limit", KvCases::getWithLimit);
        cases.put("KVTest.get_keys_or_count_only", KvCases::getKeysOrCountOnly);
        cases.put("KVTest.get_range", KvCases::getRange);
        cases.put("KVTest.get_of_some_revisions", KvCases::getOfSomeRevisions);
        cases.put("KVTest.delete", KvCases::delete);
        cases.put("KVTest.delete_range", KvCases::deleteRange);
        cases.put("KVTest.delete_by_prefix", KvCases::deleteByPrefix);
        cases.put("KVTest.compact", KvCases::compact);
        cases.put("KVTest.compact_what_is_compacted", KvCases::compactAgain);
        cases.put("KVNamespaceTest.put_get_delete", KvCases::namespace);
        cases.put("KVNamespaceTest.ranges", KvCases::namespaceRanges);
    }

    private static void put(Client client) throws Throwable {
        long first = Help.put(client, "kv/put", "1");
        long second = Help.put(client, "kv/put", "2");
        Help.check(second > first, "the revision grows");
        KeyValue found = Help.get(client, "kv/put", GetOption.DEFAULT).get(0);
        Help.equal("2", Help.text(found.getValue()));
        Help.equal(2L, found.getVersion());
        Help.equal(first, found.getCreateRevision());
        Help.equal(second, found.getModRevision());
        Help.equal(0L, found.getLease());
    }

    private static void putWithPrevious(Client client) throws Throwable {
        KV kv = client.getKVClient();
        PutOption option = PutOption.builder().withPrevKV().build();
        PutResponse first = Help.await(kv.put(Help.bytes("kv/previous"), Help.bytes("1"), option));
        Help.check(!first.hasPrevKv(), "there was nothing before");
        PutResponse second = Help.await(kv.put(Help.bytes("kv/previous"), Help.bytes("2"), option));
        Help.equal("1", Help.text(second.getPrevKv().getValue()));
    }

    private static void putWithUnknownLease(Client client) throws Throwable {
        PutOption option = PutOption.builder().withLeaseId(99999).build();
        Help.refused(Code.NOT_FOUND, "requested lease not found",
            client.getKVClient().put(Help.bytes("kv/leased"), Help.bytes("1"), option));
        Help.equal(null, Help.value(client, "kv/leased"));
    }

    private static void putOfALargeValue(Client client) throws Throwable {
        byte[] large = new byte[1 << 20];
        Arrays.fill(large, (byte) 0xff);
        Help.await(client.getKVClient().put(Help.bytes("kv/large"), ByteSequence.from(large)));
        KeyValue found = Help.get(client, "kv/large", GetOption.DEFAULT).get(0);
        Help.check(Arrays.equals(large, found.getValue().getBytes()), "the value is what was put");
        byte[] tooLarge = new byte[1_700_000];
        Help.refused(Code.INVALID_ARGUMENT, "request is too large",
            client.getKVClient().put(Help.bytes("kv/large"), ByteSequence.from(tooLarge)));
    }

    private static void putOfAnEmptyValue(Client client) throws Throwable {
        Help.put(client, "kv/empty", "");
        Help.equal("", Help.value(client, "kv/empty"));
    }

    private static void putWithoutAKey(Client client) throws Throwable {
        Help.refused(Code.INVALID_ARGUMENT, "key is not provided",
            client.getKVClient().put(ByteSequence.EMPTY, Help.bytes("1")));
    }

    private static void get(Client client) throws Throwable {
        Help.put(client, "kv/get", "value");
        GetResponse found = Help.await(client.getKVClient().get(Help.bytes("kv/get")));
        Help.equal(List.of("kv/get=value"), Help.pairs(found.getKvs()));
        Help.equal(1L, found.getCount());
        Help.check(!found.isMore(), "there is no more");
        GetOption stale = GetOption.builder().withSerializable(true).build();
        Help.equal(List.of("kv/get=value"), Help.pairs(Help.get(client, "kv/get", stale)));
        Help.equal(null, Help.value(client, "kv/nothing"));
    }

    private static void getAtARevision(Client client) throws Throwable {
        long first = Help.put(client, "kv/old", "1");
        Help.put(client, "kv/old", "2");
        GetOption option = GetOption.builder().withRevision(first).build();
        Help.equal(List.of("kv/old=1"), Help.pairs(Help.get(client, "kv/old", option)));
        Help.equal("2", Help.value(client, "kv/old"));
    }

    private static void getAtARevisionToCome(Client client) throws Throwable {
        long now = Help.put(client, "kv/to-come", "1");
        // An hour, where revisions are times.
        GetOption option = GetOption.builder().withRevision(now + (3_600_000_000L << 10)).build();
        Help.refused(Code.OUT_OF_RANGE, "required revision is a future revision",
            client.getKVClient().get(Help.bytes("kv/to-come"), option));
    }

    private static void getSortedByPrefix(Client client) throws Throwable {
        for (String name : List.of("c", "a", "b")) {
            Help.put(client, "kv/sorted/" + name, name.toUpperCase());
        }
        GetOption descending = GetOption.builder().isPrefix(true)
            .withSortField(SortTarget.KEY).withSortOrder(SortOrder.DESCEND).build();
        Help.equal(List.of("kv/sorted/c=C", "kv/sorted/b=B", "kv/sorted/a=A"),
            Help.pairs(Help.get(client, "kv/sorted/", descending)));
        GetOption byTime = GetOption.builder().isPrefix(true)
            .withSortField(SortTarget.MOD).withSortOrder(SortOrder.ASCEND).build();
        Help.equal(List.of("kv/sorted/c=C", "kv/sorted/a=A", "kv/sorted/b=B"),
            Help.pairs(Help.get(client, "kv/sorted/", byTime)));
        GetOption byValue = GetOption.builder().isPrefix(true)
            .withSortField(SortTarget.VALUE).withSortOrder(SortOrder.ASCEND).withLimit(1).build();
        Help.equal(List.of("kv/sorted/a=A"), Help.pairs(Help.get(client, "kv/sorted/", byValue)));
    }

    private static void getWithLimit(Client client) throws Throwable {
        for (int number = 0; number < 5; number++) {
            Help.put(client, "kv/limit/" + number, "");
        }
        GetOption option = GetOption.builder().isPrefix(true).withLimit(2).build();
        GetResponse found = Help.await(client.getKVClient().get(Help.bytes("kv/limit/"), option));
        Help.equal(List.of("kv/limit/0=", "kv/limit/1="), Help.pairs(found.getKvs()));
        Help.equal(5L, found.getCount());
        Help.check(found.isMore(), "there is more");
    }

    private static void getKeysOrCountOnly(Client client) throws Throwable {
        Help.put(client, "kv/only/a", "1");
        Help.put(client, "kv/only/b", "2");
        GetOption keys = GetOption.builder().isPrefix(true).withKeysOnly(true).build();
        Help.equal(List.of("kv/only/a=", "kv/only/b="), Help.pairs(Help.get(client, "kv/only/", keys)));
        GetOption count = GetOption.builder().isPrefix(true).withCountOnly(true).build();
        GetResponse found = Help.await(client.getKVClient().get(Help.bytes("kv/only/"), count));
        Help.equal(2L, found.getCount());
        Help.equal(List.of(), found.getKvs());
    }

    private static void getRange(Client client) throws Throwable {
        for (String name : List.of("a", "b", "c")) {
            Help.put(client, "kv/range/" + name, "");
        }
        GetOption upToC = GetOption.builder().withRange(Help.bytes("kv/range/c")).build();
        Help.equal(List.of("kv/range/a=", "kv/range/b="), Help.pairs(Help.get(client, "kv/range/", upToC)));
        // The end that is one byte 0 stands for all keys from the first one on.
        GetOption fromThere = GetOption.builder().withRange(ByteSequence.from(new byte[] {0})).build();
        List<String> found = Help.pairs(Help.get(client, "kv/range/b", fromThere));
        Help.equal(List.of("kv/range/b=", "kv/range/c="), found.subList(0, 2));
    }

    private static void getOfSomeRevisions(Client client) throws Throwable {
        long first = Help.put(client, "kv/some/a", "");
        long second = Help.put(client, "kv/some/b", "");
        GetOption later = GetOption.builder().isPrefix(true).withMinModRevision(second).build();
        Help.equal(List.of("kv/some/b="), Help.pairs(Help.get(client, "kv/some/", later)));
        GetOption earlier = GetOption.builder().isPrefix(true).withMaxCreateRevision(first).build();
        Help.equal(List.of("kv/some/a="), Help.pairs(Help.get(client, "kv/some/", earlier)));
    }

    private static void delete(Client client) throws Throwable {
        Help.put(client, "kv/delete", "1");
        Help.equal(1L, Help.await(client.getKVClient().delete(Help.bytes("kv/delete"))).getDeleted());
        Help.equal(0L, Help.await(client.getKVClient().delete(Help.bytes("kv/delete"))).getDeleted());
        Help.equal(null, Help.value(client, "kv/delete"));
    }

    private static void deleteRange(Client client) throws Throwable {
        for (String name : List.of("a", "b", "c")) {
            Help.put(client, "kv/delete-range/" + name, "");
        }
        DeleteOption upToC = DeleteOption.builder().withRange(Help.bytes("kv/delete-range/c")).build();
        Help.equal(2L, Help.await(client.getKVClient().delete(Help.bytes("kv/delete-range/"), upToC)).getDeleted());
        Help.equal("", Help.value(client, "kv/delete-range/c"));
    }

    private static void deleteByPrefix(Client client) throws Throwable {
        Help.put(client, "kv/delete-prefix/a", "1");
        Help.put(client, "kv/delete-prefix/b", "2");
        DeleteOption option = DeleteOption.builder().isPrefix(true).withPrevKV(true).build();
        DeleteResponse deleted = Help.await(client.getKVClient().delete(Help.bytes("kv/delete-prefix/"), option));
        Help.equal(2L, deleted.getDeleted());
        Help.equal(List.of("kv/delete-prefix/a=1", "kv/delete-prefix/b=2"), Help.pairs(deleted.getPrevKvs()));
    }

    private static void compact(Client client) throws Throwable {
        long first = Help.put(client, "kv/compacted", "1");
        long second = Help.put(client, "kv/compacted", "2");
        CompactOption physical = CompactOption.builder().withCompactPhysical(true).build();
        Help.await(client.getKVClient().compact(second, physical));
        GetOption before = GetOption.builder().withRevision(first).build();
        Help.refused(Code.OUT_OF_RANGE, "has been compacted",
            client.getKVClient().get(Help.bytes("kv/compacted"), before));
        GetOption there = GetOption.builder().withRevision(second).build();
        Help.equal(List.of("kv/compacted=2"), Help.pairs(Help.get(client, "kv/compacted", there)));
    }

    private static void compactAgain(Client client) throws Throwable {
        long revision = Help.put(client, "kv/again", "1");
        Help.await(client.getKVClient().compact(revision));
        Help.refused(Code.OUT_OF_RANGE, "has been compacted", client.getKVClient().compact(revision));
    }

    private static void namespace(Client client) throws Throwable {
        try (Client inside = Help.client().namespace(Help.bytes("kv-namespace/")).build()) {
            Help.put(inside, "a", "1");
            Help.equal("1", Help.value(client, "kv-namespace/a"));
            Help.equal(List.of("a=1"), Help.pairs(Help.get(inside, "a", GetOption.DEFAULT)));
            Help.equal(null, Help.value(inside, "kv-namespace/a"));
            PutOption previous = PutOption.builder().withPrevKV().build();
            PutResponse put = Help.await(inside.getKVClient().put(Help.bytes("a"), Help.bytes("2"), previous));
            Help.equal("a", Help.text(put.getPrevKv().getKey()));
            Help.equal(1L, Help.await(inside.getKVClient().delete(Help.bytes("a"))).getDeleted());
            Help.equal(null, Help.value(client, "kv-namespace/a"));
        }
    }

    private static void namespaceRanges(Client client) throws Throwable {
        Help.put(client, "kv-ranges0", "outside");
        try (Client inside = Help.client().namespace(Help.bytes("kv-ranges/")).build()) {
            for (String name : List.of("c", "a", "b")) {
                Help.put(inside, name, name);
            }
            // All keys of the namespace.
            ByteSequence zero = ByteSequence.from("\0", UTF_8);
            GetOption all = GetOption.builder().withRange(zero).withSortOrder(SortOrder.DESCEND).build();
            Help.equal(List.of("c=c", "b=b", "a=a"), Help.pairs(Help.await(inside.getKVClient().get(zero, all)).getKvs()));
            DeleteOption some = DeleteOption.builder().withRange(Help.bytes("c")).withPrevKV(true).build();
            DeleteResponse deleted = Help.await(inside.getKVClient().delete(Help.bytes("a"), some));
            Help.equal(List.of("a=a", "b=b"), Help.pairs(deleted.getPrevKvs()));
        }
        Help.equal("outside", Help.value(client, "kv-ranges0"));
        Help.equal("c", Help.value(client, "kv-ranges/c"));
    }

    private KvCases() {}
}
