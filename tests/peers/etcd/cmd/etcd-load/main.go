// A load on an etcd by the client that kube-apiservers have: clients with a connection each, and one call at a time on
// every connection. bench/src/headline.rs runs it.
//
// It writes "ready" when the connections stand and each has made some calls, waits for a line on its standard input, makes
// the calls, writes "done" and then the microseconds that each call took, one to a line.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const warmUp = 10

var (
	endpoint    = flag.String("endpoint", "127.0.0.1:2379", "where the etcd is")
	connections = flag.Int("connections", 66, "the number of clients")
	calls       = flag.Int("calls", 20000, "the number of calls, of all clients")
	rate        = flag.Int("rate", 0, "calls a second, of all clients; 0: each as soon as the last was answered")
	kind        = flag.String("kind", "update", "update: a transaction that puts an object unless another has changed it; get")
	valueBytes  = flag.Int("value-bytes", 512, "bytes of a value")
)

// A client, its object, and the revision that the object has.
type caller struct {
	client   *clientv3.Client
	key      string
	revision int64
	took     []time.Duration
}

func (c *caller) call(value string) error {
	ctx := context.Background()
	if *kind == "get" {
		_, err := c.client.Get(ctx, c.key)
		return err
	}
	answer, err := c.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(c.key), "=", c.revision)).
		Then(clientv3.OpPut(c.key, value)).
		Else(clientv3.OpGet(c.key)).
		Commit()
	if err != nil {
		return err
	}
	c.revision = answer.Header.Revision
	if !answer.Succeeded {
		for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
			c.revision = kv.ModRevision
		}
	}
	return nil
}

// Makes so many calls, at even times if there is a rate; a call counts from when it was due.
func (c *caller) run(count int, every, first time.Duration, value string) error {
	due := time.Now().Add(first)
	for range count {
		if every > 0 {
			time.Sleep(time.Until(due))
		} else {
			due = time.Now()
		}
		if err := c.call(value); err != nil {
			return err
		}
		c.took = append(c.took, time.Since(due))
		due = due.Add(every)
	}
	return nil
}

func main() {
	flag.Parse()
	value := strings.Repeat("v", *valueBytes)
	callers := make([]*caller, *connections)
	each := func(do func(at int, c *caller) error) {
		var all sync.WaitGroup
		for at, c := range callers {
			all.Go(func() {
				if err := do(at, c); err != nil {
					log.Fatal(err)
				}
			})
		}
		all.Wait()
	}
	for at := range callers {
		// The settings of k8s.io/apiserver/pkg/storage/storagebackend/factory.
		client, err := clientv3.New(clientv3.Config{
			Endpoints:            []string{*endpoint},
			DialTimeout:          20 * time.Second,
			DialKeepAliveTime:    30 * time.Second,
			DialKeepAliveTimeout: 10 * time.Second,
		})
		if err != nil {
			log.Fatal(err)
		}
		callers[at] = &caller{client: client, key: fmt.Sprintf("/registry/leases/grpc-go/node-%07d", at)}
	}
	each(func(_ int, c *caller) error { return c.run(warmUp, 0, 0, value) })
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		log.Fatal(err)
	}
	var every time.Duration
	if *rate > 0 {
		every = time.Duration(*connections) * time.Second / time.Duration(*rate)
	}
	count := max(*calls / *connections, 1)
	each(func(at int, c *caller) error {
		c.took = make([]time.Duration, 0, count)
		return c.run(count, every, every*time.Duration(at)/time.Duration(*connections), value)
	})
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "done")
	out.Flush()
	for _, c := range callers {
		for _, took := range c.took {
			fmt.Fprintln(out, took.Microseconds())
		}
	}
}
