// Command k3s-datastore-check does with an etcd endpoint what k3s does with its --datastore-endpoint: kine, which is a part of
// k3s, decides how to reach it, and k3s keeps its bootstrap data there.
//
//	k3s-datastore-check URL
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/k3s-io/kine/pkg/client"
	"github.com/k3s-io/kine/pkg/endpoint"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: k3s-datastore-check URL")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "k3s-datastore-check:", err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

func check(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	config, err := endpoint.Listen(ctx, endpoint.Config{Endpoint: url})
	if err != nil {
		return fmt.Errorf("kine's listen: %w", err)
	}
	if len(config.Endpoints) != 1 || config.Endpoints[0] != url || !config.LeaderElect {
		return fmt.Errorf("k3s would not use the endpoint itself: %+v", config)
	}
	store, err := client.New(config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer store.Close()
	const key = "/bootstrap/0123456789ab"
	if err := store.Create(ctx, key, []byte("first")); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if err := store.Create(ctx, key, []byte("again")); err == nil {
		return fmt.Errorf("a key is created twice")
	}
	found, err := store.Get(ctx, key)
	if err != nil || string(found.Data) != "first" {
		return fmt.Errorf("get: %q, %w", found.Data, err)
	}
	listed, err := store.List(ctx, "/bootstrap", 0)
	if err != nil || len(listed) != 1 || string(listed[0].Key) != key {
		return fmt.Errorf("list: %+v, %w", listed, err)
	}
	if err := store.Update(ctx, key, found.Modified, []byte("second")); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if err := store.Update(ctx, key, found.Modified, []byte("third")); err == nil {
		return fmt.Errorf("an update by an old revision was made")
	}
	found, err = store.Get(ctx, key)
	if err != nil || string(found.Data) != "second" {
		return fmt.Errorf("get after the update: %q, %w", found.Data, err)
	}
	if err := store.Delete(ctx, key, found.Modified); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if found, err := store.Get(ctx, key); err == nil && len(found.Data) > 0 {
		return fmt.Errorf("it is still there: %q", found.Data)
	}
	return nil
}
