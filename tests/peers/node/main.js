// Cases of npm's etcd3 against the server at KINDRED_ADDRESS. A line says that a case begins, has passed, or has failed
// and why. KINDRED_LIST lists the cases, KINDRED_CASES has those to run.

'use strict';

const assert = require('node:assert');
const { once } = require('node:events');
const { Etcd3, EtcdLeaseInvalidError, EtcdLockFailedError } = require('etcd3');

const LIMIT = 20_000;
// An enum of the library that it does not export to JavaScript.
const SERIALIZABLE_SNAPSHOT = 0;
const cases = {};

cases.get_of_each_kind = async client => {
  await client.put('kinds/text').value('value');
  await client.put('kinds/number').value(42);
  await client.put('kinds/json').value(JSON.stringify({ a: [1] }));
  await client.put('kinds/bytes').value(Buffer.from([0, 255]));
  assert.strictEqual(await client.get('kinds/text').string(), 'value');
  assert.strictEqual(await client.get('kinds/number').number(), 42);
  assert.deepStrictEqual(await client.get('kinds/json').json(), { a: [1] });
  assert.deepStrictEqual(await client.get('kinds/bytes').buffer(), Buffer.from([0, 255]));
  assert.strictEqual(await client.get('kinds/nothing'), null);
  assert.strictEqual(await client.get('kinds/nothing').exists(), false);
};

cases.get_at_a_revision = async client => {
  const first = await client.put('old').value('1');
  await client.put('old').value('2');
  assert.strictEqual(await client.get('old').revision(first.header.revision).string(), '1');
  assert.strictEqual(await client.get('old').serializable(true).string(), '2');
};

cases.get_all = async client => {
  for (const key of ['c', 'a', 'b']) await client.put(`all/${key}`).value(key.toUpperCase());
  const all = client.getAll().prefix('all/');
  assert.deepStrictEqual(await all.strings(), { 'all/a': 'A', 'all/b': 'B', 'all/c': 'C' });
  assert.deepStrictEqual(await client.getAll().prefix('all/').sort('Key', 'Descend').limit(2).keys(), ['all/c', 'all/b']);
  assert.deepStrictEqual(await client.getAll().prefix('all/').sort('Mod', 'Ascend').keys(), ['all/c', 'all/a', 'all/b']);
  assert.strictEqual(await client.getAll().prefix('all/').count(), 3);
  assert.deepStrictEqual(await client.getAll().inRange({ start: 'all/a', end: 'all/c' }).keys(), ['all/a', 'all/b']);
  assert.strictEqual((await client.getAll().prefix('all/').limit(1).exec()).more, true);
};

cases.filters_by_revision = async client => {
  const first = await client.put('filters/a').value('1');
  const second = await client.put('filters/b').value('1');
  const all = () => client.getAll().prefix('filters/');
  assert.deepStrictEqual(await all().minModRevision(second.header.revision).keys(), ['filters/b']);
  assert.deepStrictEqual(await all().maxCreateRevision(first.header.revision).keys(), ['filters/a']);
};

cases.delete = async client => {
  for (const key of ['a', 'b', 'c']) await client.put(`delete/${key}`).value(key);
  const previous = await client.delete().key('delete/a').getPrevious();
  assert.deepStrictEqual(previous.map(kv => kv.value.toString()), ['a']);
  assert.strictEqual((await client.delete().prefix('delete/')).deleted, '2');
  assert.strictEqual((await client.delete().key('delete/a')).deleted, '0');
};

cases.put_with_previous = async client => {
  await client.put('previous').value('1');
  assert.strictEqual((await client.put('previous').value('2').getPrevious()).value.toString(), '1');
  await client.put('previous').touch();
  assert.strictEqual(await client.get('previous').string(), '2');
};

cases.transaction = async client => {
  const set = () =>
    client.if('txn', 'Version', '==', 0).then(client.put('txn').value('1')).else(client.get('txn')).commit();
  assert.strictEqual((await set()).succeeded, true);
  const second = await set();
  assert.strictEqual(second.succeeded, false);
  assert.strictEqual(second.responses[0].response_range.kvs[0].value.toString(), '1');
  const both = await client
    .if('txn', 'Value', '==', '1')
    .and('txn', 'Create', '>', 0)
    .then(client.delete().key('txn'), client.put('txn2').value('x'))
    .commit();
  assert.strictEqual(both.responses[0].response_delete_range.deleted, '1');
};

cases.memory_transaction = async client => {
  await client.put('stm').value(0);
  const add = () =>
    client.stm({ isolation: SERIALIZABLE_SNAPSHOT, retries: 100 }).transact(async tx => {
      const value = await tx.get('stm').number();
      await tx.put('stm').value(value + 1);
    });
  await Promise.all([add(), add(), add(), add()]);
  assert.strictEqual(await client.get('stm').number(), 4);
};

cases.namespace = async client => {
  const space = client.namespace('space/');
  await space.put('a').value('1');
  assert.strictEqual(await client.get('space/a').string(), '1');
  assert.deepStrictEqual(await space.getAll().all().keys(), ['a']);
  const watcher = await space.watch().key('b').create();
  const put = once(watcher, 'put');
  await space.put('b').value('2');
  assert.strictEqual((await put)[0].key.toString(), 'b');
  await watcher.cancel();
};

cases.watch_a_key = async client => {
  const watcher = await client.watch().key('watched').withPreviousKV().create();
  const first = once(watcher, 'put');
  await client.put('watched').value('1');
  assert.strictEqual((await first)[0].value.toString(), '1');
  const second = once(watcher, 'put');
  await client.put('watched').value('2');
  assert.strictEqual((await second)[1].value.toString(), '1');
  const gone = once(watcher, 'delete');
  await client.delete().key('watched');
  assert.strictEqual((await gone)[0].key.toString(), 'watched');
  await watcher.cancel();
};

cases.watch_from_a_revision = async client => {
  const first = await client.put('history/a').value('1');
  await client.put('history/b').value('2');
  await client.delete().key('history/a');
  const seen = [];
  const watcher = client.watch().prefix('history/').startRevision(first.header.revision).watcher();
  watcher.on('put', kv => seen.push(`+${kv.key}`)).on('delete', kv => seen.push(`-${kv.key}`));
  while (seen.length < 3) await once(watcher, 'data');
  assert.deepStrictEqual(seen, ['+history/a', '+history/b', '-history/a']);
  await watcher.cancel();
};

cases.watch_only_deletes = async client => {
  const watcher = await client.watch().prefix('only/').only('delete').create();
  const seen = [];
  watcher.on('put', () => seen.push('put'));
  const gone = once(watcher, 'delete');
  await client.put('only/a').value('1');
  await client.delete().key('only/a');
  await gone;
  assert.deepStrictEqual(seen, []);
  await watcher.cancel();
};

cases.several_watches = async client => {
  const watchers = await Promise.all(['a', 'b', 'c'].map(key => client.watch().key(`several/${key}`).create()));
  await watchers[1].cancel();
  const events = [0, 2].map(index => once(watchers[index], 'put'));
  for (const key of ['a', 'b', 'c']) await client.put(`several/${key}`).value(key);
  assert.deepStrictEqual((await Promise.all(events)).map(([kv]) => kv.value.toString()), ['a', 'c']);
  await Promise.all([watchers[0].cancel(), watchers[2].cancel()]);
};

cases.lease = async client => {
  const lease = client.lease(60, { autoKeepAlive: false });
  await lease.put('leased').value('1');
  const id = await lease.grant();
  assert.strictEqual((await client.get('leased').exec()).kvs[0].lease, id);
  const alive = await lease.keepaliveOnce();
  assert.strictEqual(alive.TTL, '60');
  const left = await client.leaseClient.leaseTimeToLive({ ID: id, keys: true });
  assert.deepStrictEqual(left.keys.map(String), ['leased']);
  await lease.revoke();
  assert.strictEqual(await client.get('leased').exists(), false);
  await assert.rejects(client.put('leased').value('2').lease(id).exec(), /lease not found/);
};

cases.lease_expires = async client => {
  const lease = client.lease(1, { autoKeepAlive: false });
  const watcher = await client.watch().key('expires').create();
  const gone = once(watcher, 'delete');
  await lease.put('expires').value('1');
  await gone;
  await assert.rejects(lease.keepaliveOnce(), EtcdLeaseInvalidError);
  await watcher.cancel();
};

cases.lease_is_lost = async client => {
  const lease = client.lease(2);
  const id = await lease.grant();
  await once(lease, 'keepaliveSucceeded');
  const lost = once(lease, 'lost');
  await client.leaseClient.leaseRevoke({ ID: id });
  assert.ok((await lost)[0] instanceof EtcdLeaseInvalidError);
};

cases.lock = async client => {
  const lock = await client.lock('lock').ttl(10).acquire();
  await assert.rejects(client.lock('lock').acquire(), EtcdLockFailedError);
  await lock.release();
  assert.strictEqual(await client.lock('lock').do(async () => 'inside'), 'inside');
};

cases.election = async client => {
  const first = client.election('election', 5).campaign('first');
  await once(first, 'elected');
  assert.strictEqual(await client.election('election').leader(), 'first');
  const observer = await client.election('election').observe();
  assert.strictEqual(observer.leader(), 'first');
  const second = client.election('election', 5).campaign('second');
  const elected = once(second, 'elected');
  const changed = new Promise(resolve => observer.on('change', leader => leader === 'second' && resolve()));
  await first.resign();
  await Promise.all([elected, changed]);
  const proclaimed = new Promise(resolve => observer.on('change', leader => leader === 'third' && resolve()));
  await second.proclaim('third');
  await proclaimed;
  await observer.cancel();
  await second.resign();
};

cases.maintenance = async client => {
  const status = await client.maintenance.status();
  assert.match(status.version, /^3\./);
  assert.deepStrictEqual((await client.maintenance.alarm({ action: 'Get' })).alarms, []);
  const { members } = await client.cluster.memberList({});
  assert.deepStrictEqual(members.map(member => member.ID), [status.header.member_id]);
  const stream = await client.maintenance.snapshot();
  let bytes = 0;
  for await (const part of stream) bytes += part.blob.length;
  assert.ok(bytes > 4096);
};

cases.compaction = async client => {
  const first = await client.put('compacted').value('1');
  const second = await client.put('compacted').value('2');
  await client.kv.compact({ revision: second.header.revision, physical: true });
  await assert.rejects(client.get('compacted').revision(first.header.revision).string(), /has been compacted/);
  assert.strictEqual(await client.get('compacted').revision(second.header.revision).string(), '2');
};

function say(line) {
  console.log(line.replaceAll('\n', ' '));
}

async function main() {
  if (process.env.KINDRED_LIST) return Object.keys(cases).forEach(name => say(`case ${name}`));
  for (const name of process.env.KINDRED_CASES.split(',')) {
    say(`begins ${name}`);
    const client = new Etcd3({ hosts: process.env.KINDRED_ADDRESS });
    try {
      let timer;
      const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error('not done in time')), LIMIT)));
      await Promise.race([cases[name](client), late]).finally(() => clearTimeout(timer));
      say(`passed ${name}`);
    } catch (error) {
      say(`failed ${name} ${error.stack}`);
    } finally {
      client.close();
    }
  }
}

main().then(() => process.exit(0));
