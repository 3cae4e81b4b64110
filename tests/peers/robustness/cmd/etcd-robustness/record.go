package main

// A run: etcd's traffic over recording clients, and the watches over all keys beside it.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

// Where the keys of a run are: those of etcd's Kubernetes traffic, so that all are of one Kind.
const (
	prefix = "/registry/pods/"
	inUse  = prefix + "default/"
	keys   = 10
)

const (
	readyLimit = 60 * time.Second
	endLimit   = 60 * time.Second
	// How much longer clients work on a machine that is too slow for the writes that are wanted.
	slowLimit = 60 * time.Second
	// What a request that timed out may still do is over by then.
	settle = time.Second
)

var traffics = map[string]traffic.Traffic{
	"kubernetes":               traffic.Kubernetes,
	"kubernetes-create-delete": traffic.KubernetesCreateDelete,
	"etcd-put":                 traffic.EtcdPut,
	"etcd-put-delete-lease":    traffic.EtcdPutDeleteLease,
	"etcd-delete":              traffic.EtcdDelete,
}

// What was recorded, and what the judge has to know of it. Its fields beside the reports are stored with them.
type recording struct {
	// Whether each revision has one event.
	Unique bool
	// The clients that watched all keys. The first was there from the beginning on: its events are the log.
	Full []int
	// Whether answers about leases have revisions that compare with those of the keys. Those of a router are of the lease's home.
	LeaseRevisions bool
	// Whether answers through one endpoint may have lower revisions than earlier ones through another.
	Apart bool
	// Whether clients compact.
	Compacts bool
	Seed     int64
	Traffic  string
	Seconds  float64

	reports []report.ClientReport
}

// Runs the traffic, and waits until all full watches were sent everything.
func record(o options) (*recording, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.duration+readyLimit+slowLimit+3*endLimit)
	defer cancel()
	began := time.Now()
	ids := identity.NewIDProvider()
	set := client.NewSet(ids, began)
	defer set.Close()
	kind := traffics[o.traffic]
	made := &recording{
		Unique: kind.ExpectUniqueRevision(), LeaseRevisions: o.leaseRevisions, Apart: o.apart, Compacts: o.compact > 0, Seed: o.seed, Traffic: o.traffic,
	}

	before, err := emptyAt(ctx, set, o.endpoints)
	if err != nil {
		return nil, err
	}
	var live []*full
	for _, endpoint := range o.endpoints {
		watch, err := watchAll(ctx, o, set, endpoint, before+1)
		if err != nil {
			return nil, err
		}
		live = append(live, watch)
	}
	compacted, err := drive(ctx, o, set, kind, before, live)
	if err != nil {
		return nil, err
	}
	time.Sleep(settle)
	last, err := finish(ctx, set, o.endpoints)
	if err != nil {
		return nil, err
	}
	from := before + 1
	if compacted > 0 {
		from = compacted + 1
	}
	for _, endpoint := range o.endpoints {
		watch, err := watchAll(ctx, o, set, endpoint, from)
		if err != nil {
			return nil, err
		}
		live = append(live, watch)
	}
	for _, watch := range live {
		if err := watch.reach(ctx, last); err != nil {
			return nil, err
		}
		made.Full = append(made.Full, watch.client.ID)
	}
	made.Seconds = time.Since(began).Seconds()
	made.reports = set.Reports()
	return made, nil
}

// Reads through each endpoint until it serves. Returns the highest revision that was shown of a prefix without keys.
func emptyAt(ctx context.Context, set *client.ClientSet, endpoints []string) (int64, error) {
	var shown int64
	for _, endpoint := range endpoints {
		answer, err := readAll(ctx, set, endpoint, readyLimit)
		if err != nil {
			return 0, err
		}
		if answer.Count > 0 {
			return 0, fmt.Errorf("%s has %d keys below %s: name a server without any", endpoint, answer.Count, prefix)
		}
		shown = max(shown, answer.Header.Revision)
	}
	return shown, nil
}

func readAll(ctx context.Context, set *client.ClientSet, endpoint string, limit time.Duration) (answer *clientv3.GetResponse, err error) {
	reader, err := set.NewClient([]string{endpoint})
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	err = again(ctx, limit, func(ctx context.Context) error {
		answer, err = reader.Range(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 0, 0, false)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading through %s: %w", endpoint, err)
	}
	return answer, nil
}

// Has something done until it succeeds.
func again(ctx context.Context, limit time.Duration, what func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		once, done := context.WithTimeout(ctx, 5*time.Second)
		err := what(once)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not done within %s: %w", limit, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Lets the clients work. Returns the revision of the last compaction.
func drive(ctx context.Context, o options, set *client.ClientSet, kind traffic.Traffic, before int64, live []*full) (int64, error) {
	var working sync.WaitGroup
	end := make(chan struct{})
	limiter := rate.NewLimiter(rate.Limit(o.rate), int(o.rate))
	store, objects := traffic.NewKeyStore(keys, inUse+"key"), traffic.NewKubernetesStorage()
	// etcd's watches begin up to so many revisions before and behind the current one.
	offset := int64(100)
	if before > 1<<32 {
		// Times in microseconds, above ten bits: half a second.
		offset = 500_000 << 10
	}
	watches := traffic.Watch{RevisionOffsetRange: traffic.Range{Min: -offset, Max: offset}}
	watches.MemberClientCount, watches.ClusterClientCount = o.watchers, o.roaming
	load := traffic.KeyValue{MemberClientCount: o.clients, ClusterClientCount: o.roaming}
	err := traffic.SimulateKeyValueTraffic(ctx, &working, &load, o.endpoints, set, kind, traffic.RunTrafficLoopParam{
		QPSLimiter: limiter, IDs: set.IdentityProvider(), LeaseIDStorage: identity.NewLeaseIDStorage(),
		NonUniqueRequestConcurrencyLimiter: traffic.NewConcurrencyLimiter(3), KeyStore: store, Storage: objects, Finish: end,
	})
	if err != nil {
		return 0, err
	}
	err = traffic.SimulateWatchTraffic(ctx, &working, &watches, o.endpoints, set, kind, traffic.RunWatchLoopParam{
		Config: watches, QPSLimiter: limiter, KeyStore: store, Storage: objects, Finish: end,
	})
	if err != nil {
		return 0, err
	}
	compacted := make(chan int64, 1)
	go func() { compacted <- compact(ctx, o, set, live, end) }()
	until := time.Now().Add(o.duration)
	for late := until.Add(slowLimit); time.Now().Before(until) || live[0].writes() < o.writes && time.Now().Before(late); {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			close(end)
			return 0, ctx.Err()
		}
	}
	close(end)
	working.Wait()
	return <-compacted, ctx.Err()
}

// Compacts now and then, at a revision of a write, as the model knows no other; never beyond what a full watch was sent, or
// the log would have a hole.
func compact(ctx context.Context, o options, set *client.ClientSet, live []*full, end <-chan struct{}) int64 {
	if o.compact == 0 {
		return 0
	}
	caller, err := set.NewClient(o.endpoints)
	if err != nil {
		return 0
	}
	defer caller.Close()
	var last int64
	for {
		select {
		case <-end:
			return last
		case <-time.After(o.compact):
		}
		at := live[0].sent.Load()
		for _, watch := range live {
			at = min(at, watch.sent.Load())
		}
		if at = live[0].before(at); at <= last {
			continue
		}
		once, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
		// One that fails may have been done: the watches that follow begin above it.
		_, _ = caller.Compact(once, at)
		cancel()
		last = at
	}
}

// Writes and reads once more through each endpoint. Returns the revision that the last reads show, which is that of no write
// below another that was acknowledged.
func finish(ctx context.Context, set *client.ClientSet, endpoints []string) (int64, error) {
	var last int64
	for i, endpoint := range endpoints {
		writer, err := set.NewClient([]string{endpoint})
		if err != nil {
			return 0, err
		}
		err = again(ctx, endLimit, func(ctx context.Context) error {
			answer, err := writer.Put(ctx, fmt.Sprintf("%s~end%d", inUse, i), fmt.Sprintf("end %d", set.IdentityProvider().NewRequestID()))
			if err == nil {
				last = max(last, answer.Header.Revision)
			}
			return err
		})
		writer.Close()
		if err != nil {
			return 0, fmt.Errorf("the last write through %s: %w", endpoint, err)
		}
	}
	for _, endpoint := range endpoints {
		answer, err := readAll(ctx, set, endpoint, endLimit)
		if err != nil {
			return 0, err
		}
		last = max(last, answer.Header.Revision)
	}
	return last, nil
}

// A watch over all keys. It is opened again, behind what it was sent, when it ends.
type full struct {
	client   *client.RecordingClient
	endpoint string
	compacts bool
	// The revision of the last event, and the last one that is known to have been sent.
	sent, covered atomic.Int64

	mutex     sync.Mutex
	revisions []int64
	ended     error
}

func watchAll(ctx context.Context, o options, set *client.ClientSet, endpoint string, from int64) (*full, error) {
	caller, err := set.NewClient([]string{endpoint})
	if err != nil {
		return nil, err
	}
	made := &full{client: caller, endpoint: endpoint, compacts: o.compact > 0}
	made.sent.Store(from - 1)
	go made.run(ctx)
	return made, nil
}

func (f *full) run(ctx context.Context) {
	for ctx.Err() == nil {
		// One that was broken off had its events, so what follows it begins behind them.
		answers := f.client.Watch(ctx, prefix, f.sent.Load()+1, true, true, true)
		for open := true; open; {
			select {
			case <-time.After(100 * time.Millisecond):
				_ = f.client.RequestProgress(ctx)
			case answer, more := <-answers:
				open = more
				if answer.CompactRevision > f.sent.Load() {
					if f.compacts {
						f.end(fmt.Errorf("the watch over all keys through %s lost what a compaction at %d took: nothing can be judged", f.endpoint, answer.CompactRevision))
						return
					}
					// Nobody has compacted anything, so this is a finding: the log goes on behind it.
					f.sent.Store(answer.CompactRevision)
				}
				f.take(answer)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (f *full) end(because error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.ended = because
}

func (f *full) take(answer clientv3.WatchResponse) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, event := range answer.Events {
		f.revisions = append(f.revisions, event.Kv.ModRevision)
		f.sent.Store(max(f.sent.Load(), event.Kv.ModRevision))
	}
	f.covered.Store(max(f.covered.Load(), f.sent.Load()))
	if answer.IsProgressNotify() {
		f.covered.Store(max(f.covered.Load(), answer.Header.Revision))
	}
}

// The number of events that were sent.
func (f *full) writes() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return len(f.revisions)
}

// A revision of a write that lies some writes before this one; 0 if there is none.
func (f *full) before(at int64) int64 {
	const writes = 40
	f.mutex.Lock()
	defer f.mutex.Unlock()
	i, _ := slices.BinarySearch(f.revisions, at)
	if i < writes || i >= len(f.revisions) {
		return 0
	}
	return f.revisions[i-writes]
}

// Waits until everything up to a revision was sent.
func (f *full) reach(ctx context.Context, last int64) error {
	err := again(ctx, endLimit, func(context.Context) error {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		if f.ended != nil || f.covered.Load() >= last {
			return nil
		}
		return fmt.Errorf("the watch over all keys through %s is at %d and should be at %d", f.endpoint, f.covered.Load(), last)
	})
	if err != nil {
		return err
	}
	return f.ended
}
