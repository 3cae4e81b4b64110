package main

import (
	"context"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// Changes one pod, which nobody else changes, and looks for it.
type writer struct {
	namespace  string
	number     int
	apiservers []*apiserver
	found      *found
}

func (w *writer) work(ctx context.Context) error {
	for turn := w.number; ctx.Err() == nil; turn++ {
		by, other := w.apiservers[turn%len(w.apiservers)], w.apiservers[(turn+1)%len(w.apiservers)]
		// What has begun ends, however long it takes.
		ctx := context.Background()
		version, err := w.update(ctx, by, turn)
		if err != nil {
			return fmt.Errorf("update in %s: %w", w.namespace, err)
		}
		w.found.add(1, 0, "")
		for name, from := range map[string]storage.Interface{"storage": other.store, "cache": other.cached} {
			wanted := ""
			if *sabotage && name == "cache" {
				wanted = "0"
			}
			got, err := list(ctx, from, other.pods, wanted)
			if err != nil {
				return fmt.Errorf("list from the %s: %w", name, err)
			}
			stale, err := w.judge(got, version, turn)
			if err != nil {
				return err
			}
			if stale != "" {
				stale = "from the " + name + ": " + stale
			}
			w.found.add(0, 1, stale)
		}
	}
	return nil
}

// Writes the turn into the pod, and returns the version that was acknowledged.
func (w *writer) update(ctx context.Context, by *apiserver, turn int) (uint64, error) {
	pod := &example.Pod{}
	key := "/pods/" + w.namespace + "/pod"
	change := func(now runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		changed := now.(*example.Pod)
		changed.ObjectMeta = metav1.ObjectMeta{Name: "pod", Namespace: w.namespace, UID: "pod", Labels: map[string]string{"turn": strconv.Itoa(turn)}}
		return changed, nil, nil
	}
	if err := by.cached.GuaranteedUpdate(ctx, key, pod, true, nil, change, nil); err != nil {
		return 0, err
	}
	return strconv.ParseUint(pod.ResourceVersion, 10, 64)
}

// What a list lacks.
func (w *writer) judge(got *example.PodList, version uint64, turn int) (string, error) {
	at, err := strconv.ParseUint(got.ResourceVersion, 10, 64)
	if err != nil {
		return "", err
	}
	if at < version {
		return fmt.Sprintf("a list at %d, and %s was acknowledged at %d before", at, w.namespace, version), nil
	}
	for _, pod := range got.Items {
		if pod.Namespace != w.namespace {
			continue
		}
		if pod.Labels["turn"] != strconv.Itoa(turn) || pod.ResourceVersion != strconv.FormatUint(version, 10) {
			return fmt.Sprintf("%s in turn %s at %s, and turn %d was acknowledged at %d", w.namespace, pod.Labels["turn"], pod.ResourceVersion, turn, version), nil
		}
		return "", nil
	}
	return fmt.Sprintf("a list at %d without %s", at, w.namespace), nil
}
