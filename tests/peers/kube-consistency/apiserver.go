package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// Within this a cache has listed and watches.
const readyLimit = 30 * time.Second

var scheme = runtime.NewScheme()

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// The storage of an apiserver for its pods.
type apiserver struct {
	// Where all lists are asked for.
	pods string
	// The package that speaks to etcd alone, and what apiservers have.
	store, cached storage.Interface
	stops         []func()
}

func newApiserver(endpoint string, slash bool) (*apiserver, error) {
	codecs := serializer.NewCodecFactory(scheme)
	config := storagebackend.NewDefaultConfig("/registry", codecs.LegacyCodec(examplev1.SchemeGroupVersion))
	config.Transport.ServerList = []string{endpoint}
	// Other clients compact, or nobody.
	config.CompactionInterval = 0
	resource := config.ForResource(schema.GroupResource{Resource: "pods"})
	prefix := "/pods"
	if slash {
		prefix += "/"
	}
	keyOf := func(object runtime.Object) (string, error) {
		named, err := meta.Accessor(object)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("/pods/%s/%s", named.GetNamespace(), named.GetName()), nil
	}
	newPod, newPods := func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} }
	a := &apiserver{pods: "/pods"}
	for into, decorator := range map[*storage.Interface]generic.StorageDecorator{
		&a.store: generic.UndecoratedStorage, &a.cached: registry.StorageWithCacher(),
	} {
		made, stop, err := decorator(resource, prefix, keyOf, newPod, newPods, storage.DefaultNamespaceScopedAttr, nil, nil)
		if err != nil {
			a.stop()
			return nil, fmt.Errorf("%s: %w", endpoint, err)
		}
		*into = made
		a.stops = append(a.stops, stop)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := a.cached.ReadinessCheck()
		if err == nil {
			return a, nil
		}
		if time.Since(begin) > readyLimit {
			a.stop()
			return nil, fmt.Errorf("%s: %w", endpoint, err)
		}
	}
}

func (a *apiserver) stop() {
	for _, stop := range a.stops {
		stop()
	}
}

func everything() storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}
}

// All pods: the newest ones, or any with the version 0.
func list(ctx context.Context, from storage.Interface, pods, version string) (*example.PodList, error) {
	options := storage.ListOptions{Recursive: true, ResourceVersion: version, Predicate: everything()}
	got := &example.PodList{}
	return got, from.GetList(ctx, pods, options, got)
}
