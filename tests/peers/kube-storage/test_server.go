// A server outside of the tests for the storage suites of Kubernetes' apiserver.
//
// tests/peers/clients.sh puts this file in the place of the package testserver, which starts an etcd in the process of the tests.
// All tests of a process share one server, so each call of RunEtcd empties it first, and a test that runs beside the one that
// has it waits. A test that needs more than a server at an address is skipped with the reason.
//
// KINDRED_ENDPOINTS has the addresses of the server, separated by commas. A client has all of them, and its calls go to
// one after the other, as an apiserver's do.
// KINDRED_PREFIX stands before each key of a client. Kubernetes' tests of etcd3 keep their objects below /pods, and kindred
// knows Kinds below /registry.
// KINDRED_USED is a file that gets the name of each test that asks the server.

package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

const callLimit = 60 * time.Second

// progressInterval is how often the servers tell idle watches of progress. The tests that set it want this one.
const progressInterval = time.Second

// NewTestConfig is a configuration in which a test may set what it wants of its server.
func NewTestConfig(_ testing.TB) *embed.Config {
	return embed.NewConfig()
}

// RunEtcd empties the server outside, and returns a client that is connected to it.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	if cfg != nil {
		skipUnlessServed(t, cfg)
	}
	addresses := os.Getenv("KINDRED_ENDPOINTS")
	if addresses == "" {
		t.Fatal("KINDRED_ENDPOINTS is not set: tests/compatibility/kube_storage.rs runs these tests, or set it to HOST:PORT of a server that may lose all its keys")
	}
	if err := used(t); err != nil {
		t.Fatal(err)
	}
	turn.take(t)
	client, err := kubernetes.New(clientv3.Config{
		Endpoints:   strings.Split(addresses, ","),
		DialTimeout: 10 * time.Second,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	// The embedded server's end closes the connections of its clients.
	t.Cleanup(func() { client.Close() })
	if err := empty(client.KV); err != nil {
		t.Fatal(err)
	}
	if prefix := os.Getenv("KINDRED_PREFIX"); prefix != "" {
		client.KV = streaming{KV: namespace.NewKV(client.KV, prefix), server: client.KV, prefix: prefix}
		client.Watcher = namespace.NewWatcher(client.Watcher, prefix)
		client.Lease = namespace.NewLease(client.Lease, prefix)
	}
	// As Kubernetes' own RunEtcd: some tests count what is asked. client.Kubernetes asks client.KV.
	recorder := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, recorder)
	client.Kubernetes = recorder
	return client
}

// turn is whose server it is.
var turn = turns{free: sync.NewCond(&sync.Mutex{})}

type turns struct {
	free *sync.Cond
	// The test that has the server, and how many calls of it and of its parts have not ended.
	test  string
	calls int
}

// take waits until no other test has the server. It is given back when the test has ended.
func (w *turns) take(t testing.TB) {
	w.free.L.Lock()
	defer w.free.L.Unlock()
	for w.calls > 0 && w.test != t.Name() && !strings.HasPrefix(t.Name(), w.test+"/") {
		w.free.Wait()
	}
	if w.calls == 0 {
		w.test = t.Name()
	}
	w.calls++
	t.Cleanup(func() {
		w.free.L.Lock()
		defer w.free.L.Unlock()
		w.calls--
		w.free.Broadcast()
	})
}

// skipUnlessServed skips a test that wants a server that is configured otherwise than the one outside.
func skipUnlessServed(t testing.TB, cfg *embed.Config) {
	if !cfg.ClientTLSInfo.Empty() {
		t.Skip("kindred: the server outside has no certificate of this test")
	}
	fresh := embed.NewConfig()
	if interval := cfg.WatchProgressNotifyInterval; interval != fresh.WatchProgressNotifyInterval && interval != progressInterval {
		t.Skipf("kindred: the server outside tells of progress every %v, not every %v", progressInterval, interval)
	}
	if quota := cfg.QuotaBackendBytes; quota != fresh.QuotaBackendBytes {
		t.Skipf("kindred: the server outside has another quota than %d bytes", quota)
	}
	if !reflect.DeepEqual(cfg.ListenClientUrls, fresh.ListenClientUrls) {
		t.Skip("kindred: the server outside listens elsewhere")
	}
}

// used notes that the test asks the server.
func used(t testing.TB) error {
	path := os.Getenv("KINDRED_USED")
	if path == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	_, err = fmt.Fprintln(file, test)
	return errors.Join(err, file.Close())
}

// empty deletes all keys but those that begin with a control character, as the fence of a stock etcd behind a router does. Pods
// may be on such an etcd, with the key that is their prefix without the slash, and no request joins its keys with those of
// other stores.
func empty(kv clientv3.KV) error {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	bounds := []string{" ", "/registry/pods", "/registry/pods\x00", "/registry/pods/", "/registry/pods0", "\xff"}
	for i := range len(bounds) - 1 {
		if _, err := kv.Delete(ctx, bounds[i], clientv3.WithRange(bounds[i+1])); err != nil {
			return fmt.Errorf("emptying the server: %w", err)
		}
	}
	return nil
}

// streaming adds GetStream to a KV with a prefix, which has none.
type streaming struct {
	clientv3.KV
	server clientv3.KV
	prefix string
}

func (s streaming) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	switch end := string(clientv3.OpGet(key, opts...).RangeBytes()); end {
	case "":
	case "\x00":
		opts = append(slices.Clone(opts), clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.prefix)))
	default:
		opts = append(slices.Clone(opts), clientv3.WithRange(s.prefix+end))
	}
	from, err := s.server.GetStream(ctx, s.prefix+key, opts...)
	if err != nil {
		return nil, err
	}
	to := make(chan clientv3.RangeStreamResponse, 1)
	go func() {
		defer close(to)
		for chunk := range from {
			if chunk.RangeResponse != nil {
				for _, kv := range chunk.RangeResponse.Kvs {
					kv.Key = kv.Key[len(s.prefix):]
				}
			}
			select {
			case to <- chunk:
			case <-ctx.Done():
				return
			}
		}
	}()
	return to, nil
}
