package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	objects = 6
	pause   = 20 * time.Millisecond
)

// A writer of objects below a prefix, as an agent of a network plugin: it creates each only if it is not there, updates it by a
// compare on its revision, deletes it, and has a key with a lease that it renews. A watch from the beginning must show each of
// its writes, once and in order. When it is told that its revision is compacted, as when the keys leave an etcd, it lists and
// goes on from there.
type writer struct {
	name   string
	prefix string
	// The key of its session.
	alive string
	// Taken around each write, for a writer that locks.
	lock string

	lease  clientv3.LeaseID
	client *clientv3.Client
	// Held while something is written.
	writing sync.Mutex
	// The values that the server must have.
	values map[string]string
	next   int
	// What was written, in order, as the watch shows it, and how much of that it has shown.
	mu      sync.Mutex
	written []string
	shown   int
	from    int64

	failed atomic.Pointer[error]
	halt   context.CancelFunc
	idle   sync.WaitGroup
}

// Calico's datastore: resources below /calico, and a status with a lease.
func calico() *writer {
	return &writer{
		name:   "calico",
		prefix: "/calico/resources/v3/projectcalico.org/workloadendpoints/",
		alive:  "/calico/felix/v1/host/node-1/status",
	}
}

// Cilium's kvstore: identities and addresses below cilium/state, behind a lock.
func cilium() *writer {
	return &writer{
		name:   "cilium",
		prefix: "cilium/state/identities/v1/id/",
		alive:  "cilium/state/nodes/v1/default/node-1",
		lock:   "cilium/state/identities/v1/locks/id",
	}
}

// Goes to a server. What it does stops before, and goes on there.
func (w *writer) at(address string) error {
	if w.client != nil {
		w.halt()
		w.idle.Wait()
		w.client.Close()
	}
	var err error
	if w.client, err = connect(address); err != nil {
		return err
	}
	ctx, cancel := within()
	defer cancel()
	if w.values == nil {
		granted, err := w.client.Grant(ctx, ttl)
		if err != nil {
			return err
		}
		put, err := w.client.Put(ctx, w.alive, "alive", clientv3.WithLease(granted.ID))
		if err != nil {
			return err
		}
		w.lease, w.values = granted.ID, map[string]string{}
		w.from = put.Header.Revision + 1
	} else if err := w.relist(); err != nil {
		// Revisions of one server say nothing at another: an agent that starts there lists, and watches from its list.
		return err
	}
	running, stop := context.WithCancel(context.Background())
	w.halt = stop
	for _, task := range []func(context.Context) error{w.write, w.watch, w.renew} {
		w.idle.Go(func() {
			if err := task(running); err != nil && running.Err() == nil {
				err = fmt.Errorf("%s: %w", w.name, err)
				w.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return nil
}

func (w *writer) found() error {
	if failed := w.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

func (w *writer) renew(ctx context.Context) error {
	renewed, err := w.client.KeepAlive(ctx, w.lease)
	if err != nil {
		return err
	}
	for range renewed {
	}
	return fmt.Errorf("the lease %x is renewed no more", w.lease)
}

func (w *writer) write(ctx context.Context) error {
	for ctx.Err() == nil {
		w.writing.Lock()
		err := w.locked(w.one)
		w.writing.Unlock()
		if err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

// Does something while it has the lock, if it has one.
func (w *writer) locked(do func(context.Context) error) error {
	ctx, cancel := within()
	defer cancel()
	if w.lock == "" {
		return do(ctx)
	}
	session, err := concurrency.NewSession(w.client, concurrency.WithLease(w.lease), concurrency.WithContext(ctx))
	if err != nil {
		return err
	}
	defer session.Orphan()
	mutex := concurrency.NewMutex(session, w.lock)
	if err := mutex.Lock(ctx); err != nil {
		return fmt.Errorf("%s: %w", w.lock, err)
	}
	if err := do(ctx); err != nil {
		return err
	}
	return mutex.Unlock(ctx)
}

// One write: objects are created, updated twice and deleted in turn.
func (w *writer) one(ctx context.Context) error {
	key := fmt.Sprintf("%sobject-%d", w.prefix, w.next%objects)
	step, value := w.next/objects%4, fmt.Sprintf("%d", w.next)
	w.next++
	op, what := clientv3.OpPut(key, value), "PUT "+key+" "+value
	if step == 3 {
		op, what = clientv3.OpDelete(key), "DELETE "+key+" "
	}
	done, at, err := w.compared(ctx, key, op)
	if err == nil && !done {
		// Its keys may have gone to another etcd between the read and the compare, where the object has another revision.
		done, at, err = w.compared(ctx, key, op)
	}
	if err != nil {
		return err
	}
	if !done {
		return fmt.Errorf("%s was at %d, and is not any more", key, at)
	}
	if step == 3 {
		delete(w.values, key)
	} else {
		w.values[key] = value
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = append(w.written, what)
	return nil
}

// Reads an object, which must be as it was written, and changes it if it still has the revision that was read.
func (w *writer) compared(ctx context.Context, key string, op clientv3.Op) (done bool, at int64, err error) {
	got, err := w.client.Get(ctx, key)
	if err != nil {
		return false, 0, err
	}
	var has string
	if len(got.Kvs) == 1 {
		has, at = string(got.Kvs[0].Value), got.Kvs[0].ModRevision
	}
	if written, is := w.values[key]; is != (at > 0) || has != written {
		return false, at, fmt.Errorf("%s is %q at %d, written was %q", key, has, at, written)
	}
	answer, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", at)).Then(op).Commit()
	if err != nil {
		return false, at, err
	}
	return answer.Succeeded, at, nil
}

// Follows what is written.
func (w *writer) watch(ctx context.Context) error {
	for {
		if err := w.follow(ctx); !errors.Is(err, rpctypes.ErrCompacted) {
			return err
		}
		if err := w.relist(); err != nil {
			return err
		}
	}
}

// Lists while nothing is written, and goes on from there.
func (w *writer) relist() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	ctx, cancel := within()
	defer cancel()
	if err := w.same(ctx); err != nil {
		return err
	}
	got, err := w.client.Get(ctx, w.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from, w.shown = got.Header.Revision+1, len(w.written)
	return nil
}

func (w *writer) follow(ctx context.Context) error {
	for answer := range w.client.Watch(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithRev(w.from)) {
		if err := answer.Err(); err != nil {
			return err
		}
		for _, event := range answer.Events {
			what := fmt.Sprintf("%s %s %s", event.Type, event.Kv.Key, event.Kv.Value)
			if err := w.show(ctx, what); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("its watch has ended")
}

// The next event. It can come before the answer to its write.
func (w *writer) show(ctx context.Context, what string) error {
	for start := time.Now(); time.Since(start) < limit; time.Sleep(pause) {
		w.mu.Lock()
		if w.shown < len(w.written) {
			wanted := w.written[w.shown]
			w.shown++
			w.mu.Unlock()
			if what != wanted {
				return fmt.Errorf("its watch shows %q, not %q", what, wanted)
			}
			return nil
		}
		w.mu.Unlock()
		if ctx.Err() != nil {
			return nil
		}
	}
	return fmt.Errorf("its watch shows %q, which it did not write", what)
}

// Compares all that the server has with what was acknowledged.
func (w *writer) same(ctx context.Context) error {
	got, err := w.client.Get(ctx, w.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	var has, wanted []string
	for _, kv := range got.Kvs {
		has = append(has, fmt.Sprintf("%s=%s", kv.Key, kv.Value))
	}
	for key, value := range w.values {
		wanted = append(wanted, fmt.Sprintf("%s=%s", key, value))
	}
	slices.Sort(wanted)
	if !slices.Equal(has, wanted) {
		return fmt.Errorf("%s: there are %v, and written were %v", w.name, has, wanted)
	}
	status, err := w.client.Get(ctx, w.alive)
	if err != nil {
		return err
	}
	if len(status.Kvs) != 1 || clientv3.LeaseID(status.Kvs[0].Lease) != w.lease {
		return fmt.Errorf("%s: its key %s with the lease %x is %v", w.name, w.alive, w.lease, status.Kvs)
	}
	return nil
}

// Waits until the watch has shown what is written until now.
func (w *writer) check() (string, error) {
	w.mu.Lock()
	count := max(len(w.written), 1)
	w.mu.Unlock()
	for start := time.Now(); ; time.Sleep(pause) {
		w.mu.Lock()
		shown := w.shown
		w.mu.Unlock()
		if err := w.found(); err != nil {
			return "", err
		}
		if shown >= count {
			return fmt.Sprintf("%s: %d", w.name, count), nil
		}
		if time.Since(start) > limit {
			return "", fmt.Errorf("%s: its watch has shown %d of %d", w.name, shown, count)
		}
	}
}

// A lease that is revoked takes its key along, and is granted again.
func (w *writer) drop() error {
	ctx, cancel := within()
	defer cancel()
	granted, err := w.client.Grant(ctx, ttl)
	if err != nil {
		return err
	}
	key := w.alive + "-gone"
	if _, err := w.client.Put(ctx, key, "alive", clientv3.WithLease(granted.ID)); err != nil {
		return err
	}
	if _, err := w.client.Revoke(ctx, granted.ID); err != nil {
		return err
	}
	got, err := w.client.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(got.Kvs) != 0 {
		return fmt.Errorf("%s: %s is there without its lease", w.name, key)
	}
	return nil
}
