// Consistent lists by Kubernetes' own storage: the package that speaks to etcd, and the cache over it, as an apiserver of this version
// has them. There is one of both for each endpoint. Writers update an object through one endpoint and at once list through the next,
// from the storage and from the cache. Each list must have the object as it was acknowledged, and no lower version of its own.
//
//	kube-consistency -endpoints 127.0.0.1:2379,127.0.0.1:2380 -seconds 5
//
// It prints a line of counts. A list that is stale is counted, and the first ones are told on standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	endpoints = flag.String("endpoints", "", "one for each apiserver, separated by commas")
	slash     = flag.Bool("slash", false, "the prefix of the resource ends in a slash, as that of some clients of this package")
	seconds   = flag.Int("seconds", 5, "how long the writers work")
	sabotage  = flag.Bool("sabotage", false, "list whatever the cache has, which must be found")
)

// Their pods are in namespaces of these names, so that each range of names has some.
var namespaces = []string{"alpha", "bravo", "kilo", "lima", "tango", "victor"}

func main() {
	flag.Parse()
	metrics.Register()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kube-consistency:", err)
		os.Exit(1)
	}
}

func run() error {
	var apiservers []*apiserver
	for endpoint := range strings.SplitSeq(*endpoints, ",") {
		apiserver, err := newApiserver("http://"+endpoint, *slash)
		if err != nil {
			return err
		}
		defer apiserver.stop()
		apiservers = append(apiservers, apiserver)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*seconds)*time.Second)
	defer cancel()
	found := &found{}
	var writers sync.WaitGroup
	failed := make(chan error, len(namespaces))
	for number, namespace := range namespaces {
		writers.Go(func() {
			writer := &writer{namespace, number, apiservers, found}
			if err := writer.work(ctx); err != nil {
				failed <- err
			}
		})
	}
	writers.Wait()
	close(failed)
	var all []error
	for err := range failed {
		all = append(all, err)
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	fromCache, err := fromCache()
	if err != nil {
		return err
	}
	fmt.Printf("updates=%d lists=%d stale=%d from_cache=%d\n", found.updates, found.lists, found.stale, fromCache)
	return nil
}

// What the writers have done and found.
type found struct {
	mu                    sync.Mutex
	updates, lists, stale int
}

func (f *found) add(updates, lists int, stale string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.updates, f.lists = f.updates+updates, f.lists+lists
	if stale == "" {
		return
	}
	f.stale++
	if f.stale <= 10 {
		fmt.Fprintln(os.Stderr, stale)
	}
}

// The number of consistent lists that a cache has answered by itself.
func fromCache() (int, error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return 0, err
	}
	count := 0
	for _, family := range families {
		if !strings.HasSuffix(family.GetName(), "watch_cache_consistent_read_total") {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["success"] == "true" && labels["fallback"] == "false" {
				count += int(metric.GetCounter().GetValue())
			}
		}
	}
	return count, nil
}
