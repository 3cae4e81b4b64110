"""Cases of Patroni's own code for etcd's v3 API against the server at KINDRED_ADDRESS, as members of a cluster use it.

Patroni's tests of it have no server. There is no PostgreSQL here: only what Patroni keeps in etcd is looked at.
"""

import json
import os
import socket
import threading
import time

import pytest
from patroni.dcs import get_dcs
from patroni.dcs.etcd3 import LeaseNotFound, base64_encode

ADDRESS = os.environ.get("KINDRED_ADDRESS", "")
# What another member writes is seen after a moment, as it comes over a watch.
SEEN_SECONDS = 10


class Clusters:
    """Makes members of the cluster of one case, which has a scope of its own."""

    def __init__(self, scope):
        self.scope = scope

    def member(self, name, ttl=30, server=None, **more):
        config = {
            "scope": self.scope,
            "name": name,
            "ttl": ttl,
            "loop_wait": 1,
            "retry_timeout": 5,
            "etcd3": {"host": ADDRESS} if server is None else server,
        }
        return get_dcs({**config, **more})

    def patronictl(self):
        """What `patronictl` asks with: no lease, no watch, and the latest state."""
        return self.member("ctl", patronictl=True)


@pytest.fixture
def make(request):
    return Clusters(request.node.name)


def seen(what):
    """Waits until something holds, and returns it."""
    end = time.monotonic() + SEEN_SECONDS
    while True:
        found = what()
        if found or time.monotonic() > end:
            assert found
            return found
        time.sleep(0.02)


def leader(dcs):
    leader = dcs.get_cluster().leader
    return leader and leader.name


def led(dcs):
    """The cluster, as soon as it is seen to have a leader. Patroni reads what a watch has brought, also of its own writes."""
    return seen(lambda: dcs.get_cluster().leader and dcs.get_cluster())


def data(dcs, name):
    """What a member says of itself, or None if it is not seen yet."""
    member = dcs.get_cluster().get_member(name, fallback_to_leader=False)
    return member and member.data


def revoke_lease(dcs):
    dcs._client.call_rpc("/lease/revoke", {"ID": dcs._lease})


def test_scope_without_cluster(make):
    cluster = make.patronictl().get_cluster()
    assert cluster.is_empty()
    assert cluster.is_unlocked()
    assert make.member("one").get_cluster().members == []


def test_initialize(make):
    one, two = make.member("one"), make.member("two")
    assert one.initialize(sysid="")
    assert not two.initialize(sysid="2")
    assert one.initialize(create_new=False, sysid="12345")
    assert make.patronictl().get_cluster().initialize == "12345"


def test_cancel_initialization(make):
    one, two = make.member("one"), make.member("two")
    assert one.initialize()
    assert one.cancel_initialization()
    assert two.initialize(sysid="2")
    assert make.patronictl().get_cluster().initialize == "2"


def test_leader_lock_has_one_winner(make):
    one, two = make.member("one"), make.member("two")
    assert one.attempt_to_acquire_leader()
    assert not two.attempt_to_acquire_leader()
    for dcs in (one, two):
        seen(lambda: leader(dcs) == "one")


def test_leader_lock_in_a_race(make):
    members = [make.member(f"m{number}") for number in range(5)]
    won = []
    race = threading.Barrier(len(members))

    def run(dcs):
        race.wait()
        if dcs.acquire_leader_lock():
            won.append(dcs._name)

    threads = [threading.Thread(target=run, args=[dcs]) for dcs in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    for dcs in members:
        seen(lambda: leader(dcs) == won[0])


def test_leader_lock_after_the_lease_was_lost(make):
    one = make.member("one")
    revoke_lease(one)
    assert one.attempt_to_acquire_leader()
    assert led(one).leader.session == one._lease


def test_take_leader(make):
    one, two = make.member("one"), make.member("two")
    assert one.attempt_to_acquire_leader()
    assert two.take_leader()
    seen(lambda: leader(one) == "two")


def test_update_leader(make):
    one, two = make.member("one"), make.member("two")
    assert one.attempt_to_acquire_leader()
    assert one.update_leader(led(one), 1000, {"slot": 900}, {"one": "http://one"})
    seen(lambda: two.get_cluster().status.last_lsn)
    status = two.get_cluster().status
    assert (status.last_lsn, status.slots) == (1000, {"slot": 900})
    assert seen(lambda: two.get_cluster().failsafe) == {"one": "http://one"}
    assert one.update_leader(led(one), 2000)
    seen(lambda: two.get_cluster().status.last_lsn == 2000)


def test_update_leader_with_a_new_lease(make):
    one, two = make.member("one"), make.member("two")
    assert one.attempt_to_acquire_leader()
    cluster, before = led(one), one._lease
    revoke_lease(one)
    seen(lambda: two.get_cluster().is_unlocked())
    assert one.update_leader(cluster, None)
    assert one._lease != before
    found = make.patronictl().get_cluster().leader
    assert (found.name, found.session) == ("one", one._lease)


def test_update_leader_takes_the_key_to_a_new_lease(make):
    one = make.member("one")
    assert one.attempt_to_acquire_leader()
    cluster, before = led(one), one._lease
    one._lease = None
    assert one.update_leader(cluster, None)
    found = make.patronictl().get_cluster().leader
    assert (found.name, found.session) == ("one", one._lease)
    assert found.session != before


def test_update_leader_of_who_is_replaced(make):
    one, two = make.member("one"), make.member("two")
    assert one.attempt_to_acquire_leader()
    cluster = led(one)
    revoke_lease(one)
    seen(two.attempt_to_acquire_leader)
    assert not one.update_leader(cluster, None)
    assert make.patronictl().get_cluster().leader.name == "two"


def test_touch_member(make):
    one, two = make.member("one"), make.member("two")
    assert one.touch_member({"role": "primary", "xlog_location": 1})
    assert two.touch_member({"role": "replica"})
    for dcs in (one, two, make.patronictl()):
        members = seen(lambda: len(dcs.get_cluster().members) == 2 and dcs.get_cluster().members)
        assert {member.name: member.data["role"] for member in members} == {"one": "primary", "two": "replica"}
        assert {member.session for member in members} == {one._lease, two._lease}
    assert one.touch_member({"role": "demoted"})
    seen(lambda: data(two, "one") == {"role": "demoted"})


def test_touch_member_after_the_lease_was_lost(make):
    one = make.member("one")
    assert one.touch_member({"role": "replica"})
    revoke_lease(one)
    # The lease is not asked about before a loop is over, so the first one finds that it is lost.
    seen(lambda: one.touch_member({"role": "primary"}))
    assert make.patronictl().get_cluster().get_member("one").session == one._lease


def test_members_of_an_expired_session(make):
    one, two = make.member("one", ttl=2), make.member("two")
    assert one.touch_member({"role": "primary"}) and two.touch_member({"role": "replica"})
    assert one.attempt_to_acquire_leader()
    seen(lambda: leader(two) == "one")
    # Nobody keeps the session of the first one alive.
    seen(lambda: two.get_cluster().is_unlocked())
    assert [member.name for member in two.get_cluster().members] == ["two"]
    assert two.attempt_to_acquire_leader()


def test_refresh_lease(make):
    one = make.member("one", ttl=20)
    lease = one._lease
    assert one._do_refresh_lease() is False
    assert one._do_refresh_lease(force=True) is False
    assert one._lease == lease
    assert one._client.lease_keepalive(lease) == "20"
    revoke_lease(one)
    assert one._client.lease_keepalive(lease) is None
    assert one._do_refresh_lease(force=True) is True
    assert one._lease != lease


def test_put_with_a_lost_lease(make):
    one = make.member("one")
    revoke_lease(one)
    with pytest.raises(LeaseNotFound):
        one._client.put(one.member_path, "{}", one._lease)
    with pytest.raises(LeaseNotFound):
        one._client.put(one.leader_path, "one", one._lease, create_revision="0")


def test_set_ttl(make):
    one = make.member("one", ttl=30)
    one.set_ttl(45)
    # The loop does not wait, as it has a lease to ask for.
    assert one.watch(None, 5)
    assert one._do_refresh_lease() is True
    left = one._client.call_rpc("/lease/timetolive", {"ID": one._lease})
    assert left["grantedTTL"] == "45"


def test_config_by_version(make):
    one = make.patronictl()
    assert one.set_config_value(json.dumps({"ttl": 30}))
    first = one.get_cluster().config
    assert one.set_config_value(json.dumps({"ttl": 40}), first.version)
    second = one.get_cluster().config
    assert (second.data, second.version > first.version) == ({"ttl": 40}, True)
    assert not one.set_config_value(json.dumps({"ttl": 50}), first.version)
    assert one.get_cluster().config.data == {"ttl": 40}


def test_failover_by_version(make):
    one, ctl = make.member("one"), make.patronictl()
    assert ctl.manual_failover("one", "two")
    found = seen(lambda: one.get_cluster().failover)
    assert (found.leader, found.candidate) == ("one", "two")
    assert ctl.manual_failover("two", "three", version=found.version)
    assert not ctl.manual_failover("three", "four", version=found.version)
    now = ctl.get_cluster().failover
    assert (now.leader, now.candidate) == ("two", "three")
    # This is how a member says that it is done.
    assert one.manual_failover("", "", version=now.version)
    assert ctl.get_cluster().failover.candidate is None


def test_sync_state(make):
    one, ctl = make.member("one"), make.patronictl()
    first = one.write_sync_state("one", ["two"], 0, version="0")
    assert first.leader == "one"
    assert one.write_sync_state("one", ["three"], 0, version="0") is None
    second = one.write_sync_state("one", ["two", "three"], 1, version=first.version)
    found = ctl.get_cluster().sync
    assert (found.leader, found.sync_standby, found.quorum) == ("one", "three,two", 1)
    assert found.version == second.version
    assert one.write_sync_state("one", None, 0, version=first.version) is None
    assert not one.delete_sync_state(version=first.version)
    assert one.delete_sync_state(version=second.version)
    assert ctl.get_cluster().sync.is_empty


def test_history(make):
    one, two = make.member("one"), make.member("two")
    lines = [[1, 67197376, "no recovery target specified", "2026-01-01T00:00:00+00:00"]] * 500
    assert one.set_history_value(json.dumps(lines))
    history = seen(lambda: two.get_cluster().history)
    assert len(history.lines) == 500


def test_delete_leader(make):
    one, two = make.member("one"), make.member("two")
    assert one.attempt_to_acquire_leader()
    cluster = led(one)
    assert not two.delete_leader(cluster.leader)
    assert leader(make.patronictl()) == "one"
    assert one.delete_leader(cluster.leader, 3000)
    found = seen(lambda: two.get_cluster().is_unlocked() and two.get_cluster())
    assert found.status.last_lsn == 3000
    assert not one.delete_leader(cluster.leader)


def test_delete_cluster(make):
    one, ctl = make.member("one"), make.patronictl()
    other = Clusters(make.scope + "_other").member("one")
    for dcs in (one, other):
        assert dcs.initialize(sysid="1") and dcs.touch_member({"role": "primary"})
        assert dcs.attempt_to_acquire_leader()
    assert ctl.delete_cluster()
    assert ctl.get_cluster().is_empty()
    seen(lambda: one.get_cluster().is_empty())
    seen(lambda: leader(other) == "one" and other.get_cluster().initialize == "1")


def test_citus_groups(make):
    groups = {group: {"database": "citus", "group": group} for group in (0, 1)}
    coordinator = make.member("c", citus=groups[0])
    worker = make.member("w", citus=groups[1])
    for dcs in (coordinator, worker):
        assert dcs.attempt_to_acquire_leader()
        assert dcs.touch_member({"role": "primary"})
    cluster = seen(lambda: coordinator.get_cluster().workers and coordinator.get_cluster())
    assert cluster.leader.name == "c"
    assert seen(lambda: coordinator.get_cluster().workers[1].leader).name == "w"
    assert worker.get_mpp_coordinator().leader.name == "c"


def test_watch_without_change(make):
    one = make.member("one")
    one.get_cluster()
    begin = time.monotonic()
    assert not one.watch(None, 0.5)
    assert time.monotonic() - begin >= 0.4


def wakes(dcs, change):
    """Whether a loop that waits for 10 s is woken at once by a change."""
    dcs.get_cluster()
    dcs.event.clear()
    timer = threading.Timer(0.2, change)
    timer.start()
    begin = time.monotonic()
    woken = dcs.watch(None, 10)
    timer.join()
    return woken and time.monotonic() - begin < 8


def test_watch_wakes_when_a_leader_comes_and_goes(make):
    one, two = make.member("one"), make.member("two")
    assert wakes(two, one.attempt_to_acquire_leader)
    assert leader(two) == "one"
    assert wakes(two, lambda: one.delete_leader(led(one).leader))
    assert two.get_cluster().is_unlocked()


def test_watch_wakes_when_the_leader_goes_on(make):
    one, two = make.member("one"), make.member("two")
    assert one.attempt_to_acquire_leader()
    seen(lambda: leader(two) == "one")
    assert wakes(two, lambda: one.update_leader(led(one), 4000))
    assert two.get_cluster().status.last_lsn == 4000


def test_watch_wakes_when_the_config_changes(make):
    one, ctl = make.member("one"), make.patronictl()
    assert ctl.set_config_value('{"ttl":30}')
    seen(lambda: one.get_cluster().config)
    assert wakes(one, lambda: ctl.set_config_value('{"ttl":31}'))
    assert one.get_cluster().config.data == {"ttl": 31}


def test_watch_wakes_when_a_session_expires(make):
    one, two = make.member("one", ttl=2), make.member("two")
    assert one.attempt_to_acquire_leader()
    seen(lambda: leader(two) == "one")
    assert wakes(two, lambda: None)
    assert two.get_cluster().is_unlocked()


def test_watch_goes_on_after_its_stream_ended(make):
    one, two = make.member("one"), make.member("two")
    for number in range(5):
        two._client._restart_watcher()
        assert one.touch_member({"number": number})
        seen(lambda: data(two, "one") == {"number": number})
    assert wakes(two, one.attempt_to_acquire_leader)


def test_watch_goes_on_after_a_compaction(make):
    one, two = make.member("one"), make.member("two")
    assert one.touch_member({"number": 0})
    put = one._client.put(one.history_path, "[]")
    one._client.call_rpc("/kv/compaction", {"revision": put["header"]["revision"], "physical": True})
    two._client._restart_watcher()
    assert one.touch_member({"number": 1})
    seen(lambda: data(two, "one") == {"number": 1})


def test_watch_has_a_term_that_does_not_go_back(make):
    """Patroni leaves a server whose term is below one that it has seen, in an answer or in a message of a watch."""
    one = make.member("one")
    for number in range(20):
        assert one.touch_member({"number": number})
        seen(lambda: data(one, "one") == {"number": number})
    cache = one._client._kv_cache
    assert cache._raft_term == one._client._raft_term > 0
    assert cache._cluster_id == one._client._cluster_id


def test_user_where_there_are_none(make):
    server = {"host": ADDRESS, "username": "patroni", "password": "secret"}
    one = make.member("one", server=server)
    assert one.attempt_to_acquire_leader()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_several_hosts_of_which_one_is_down(make):
    hosts = [f"127.0.0.1:{free_port()}", ADDRESS]
    one = make.member("one", server={"hosts": hosts})
    assert one.attempt_to_acquire_leader()
    assert led(one).leader.name == "one"


class Way:
    """Another address of the server, which can be closed."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.open = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        host, port = ADDRESS.rsplit(":", 1)
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection((host, int(port)))
            self.open += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        for each in self.open:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()


def test_several_hosts_of_which_one_goes_down(make):
    way = Way()
    two = make.member("two")
    # Each host is what it says, whatever the list of members says.
    one = make.member("one", server={"hosts": [way.address, ADDRESS], "use_proxies": True})
    one._client.set_base_uri("http://" + way.address)
    assert one.attempt_to_acquire_leader() and one.touch_member({"number": 1})
    way.close()
    # What fails first makes it go to the other host.
    seen(lambda: one.touch_member({"number": 2}))
    assert one.update_leader(led(one), 5000)
    assert one._client._base_uri == "http://" + ADDRESS
    seen(lambda: two.get_cluster().status.last_lsn == 5000)
    assert two.touch_member({"number": 3})
    seen(lambda: data(one, "two") == {"number": 3})


def test_keys_are_where_others_look_for_them(make):
    one = make.member("one", namespace="/database/")
    assert one.attempt_to_acquire_leader()
    key = base64_encode(f"/database/{make.scope}/leader")
    found = one._client.call_rpc("/kv/range", {"key": key})
    assert found["kvs"][0]["value"] == base64_encode("one")
    assert found["kvs"][0]["lease"] == one._lease
