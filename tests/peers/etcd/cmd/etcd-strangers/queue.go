package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	members = 4
	// Longer than a way to another server, and short enough that a lease that nobody renews ends during the test.
	ttl = 20
)

// What a member of a queue waits for: an election or a lock. Both are keys of sessions, in the order of their creation.
type kind interface {
	wait(ctx context.Context, session *concurrency.Session, prefix, name string) (release func(context.Context) error, err error)
}

type (
	election struct{}
	lock     struct{}
)

var (
	elections kind = election{}
	locks     kind = lock{}
)

func (election) wait(ctx context.Context, session *concurrency.Session, prefix, name string) (func(context.Context) error, error) {
	made := concurrency.NewElection(session, prefix)
	return made.Resign, made.Campaign(ctx, name)
}

func (lock) wait(ctx context.Context, session *concurrency.Session, prefix, _ string) (func(context.Context) error, error) {
	made := concurrency.NewMutex(session, prefix)
	return made.Unlock, made.Lock(ctx)
}

// Members that wait for the same thing. The first has it.
type queue struct {
	prefix  string
	kind    kind
	members []*member
}

// A member, with its session. Its name is in the order of the queue.
type member struct {
	name    string
	lease   clientv3.LeaseID
	client  *clientv3.Client
	session *concurrency.Session
	leave   context.CancelFunc
	has     chan outcome
	// Set when it has what it waited for.
	release func(context.Context) error
}

type outcome struct {
	release func(context.Context) error
	err     error
}

func newQueue(prefix string, kind kind) *queue {
	q := &queue{prefix: prefix, kind: kind}
	for i := range members {
		q.members = append(q.members, &member{name: fmt.Sprintf("m%d", i)})
	}
	return q
}

// Goes to a server with all members. The client of each is closed before, as when its process starts again with other flags; its
// lease goes on, and so does its place in the queue.
func (q *queue) at(address string) error {
	for _, m := range q.members {
		if err := m.at(address, q); err != nil {
			return fmt.Errorf("%s of %s: %w", m.name, q.prefix, err)
		}
	}
	return q.first()
}

func (m *member) at(address string, q *queue) error {
	if m.client != nil {
		m.session.Orphan()
		m.client.Close()
		// Only behind that, or it would give up its place.
		<-m.has
		m.leave()
	}
	var err error
	if m.client, err = connect(address); err != nil {
		return err
	}
	if m.lease == 0 {
		ctx, cancel := within()
		granted, err := m.client.Grant(ctx, ttl)
		cancel()
		if err != nil {
			return err
		}
		m.lease = granted.ID
	}
	if m.session, err = concurrency.NewSession(m.client, concurrency.WithTTL(ttl), concurrency.WithLease(m.lease)); err != nil {
		return err
	}
	m.wait(q)
	return q.stands(m)
}

// Begins to wait, or takes its place again. The answer comes in `has`, once.
func (m *member) wait(q *queue) {
	ctx, cancel := context.WithCancel(context.Background())
	has := make(chan outcome, 1)
	m.leave, m.has, m.release = cancel, has, nil
	session, prefix, name := m.session, q.prefix, m.name
	go func() {
		release, err := q.kind.wait(ctx, session, prefix, name)
		for errors.Is(err, rpctypes.ErrCompacted) {
			// What a watch is told when its keys leave an etcd. The key is there, and so is the place.
			release, err = q.kind.wait(ctx, session, prefix, name)
		}
		has <- outcome{release, err}
		close(has)
	}()
}

// Waits until the key of a member is there, so that the order is that of the members.
func (q *queue) stands(m *member) error {
	ctx, cancel := within()
	defer cancel()
	for {
		got, err := m.client.Get(ctx, fmt.Sprintf("%s/%x", q.prefix, m.lease))
		if err != nil {
			return err
		}
		if len(got.Kvs) == 1 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Waits until the first member has what it waits for.
func (q *queue) first() error {
	m := q.members[0]
	if m.release != nil {
		return nil
	}
	select {
	case got := <-m.has:
		m.release = got.release
		if got.err != nil {
			return fmt.Errorf("%s of %s: %w", m.name, q.prefix, got.err)
		}
		return nil
	case <-time.After(limit):
		return fmt.Errorf("%s of %s, which is the first, has waited for %s", m.name, q.prefix, limit)
	}
}

// The members as the server has them. They must be those that are known, in this order, and only the first may have it.
func (q *queue) order() (string, error) {
	ctx, cancel := within()
	defer cancel()
	var names, leases []string
	for _, m := range q.members {
		names = append(names, m.name)
		leases = append(leases, fmt.Sprintf("%x", m.lease))
		left, err := m.client.TimeToLive(ctx, m.lease, clientv3.WithAttachedKeys())
		if err != nil {
			return "", err
		}
		if left.TTL <= 0 || left.GrantedTTL != ttl || len(left.Keys) != 1 {
			return "", fmt.Errorf("%s of %s: its lease has %d of %d s and %d keys", m.name, q.prefix, left.TTL, left.GrantedTTL, len(left.Keys))
		}
	}
	got, err := q.members[0].client.Get(ctx, q.prefix+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return "", err
	}
	var stand []string
	for _, kv := range got.Kvs {
		stand = append(stand, strings.TrimPrefix(string(kv.Key), q.prefix+"/"))
	}
	if q.kind == locks {
		// A lock gives its place up when its watch fails, as when the keys leave an etcd. Who has it keeps it.
		q.reorder(stand)
		leases, names = nil, nil
		for _, m := range q.members {
			names, leases = append(names, m.name), append(leases, fmt.Sprintf("%x", m.lease))
		}
	}
	if !slices.Equal(stand, leases) {
		return "", fmt.Errorf("%s: in the order of their creation there are %v, not %v", q.prefix, stand, leases)
	}
	if err := q.first(); err != nil {
		return "", err
	}
	for _, m := range q.members[1:] {
		select {
		case got := <-m.has:
			return "", fmt.Errorf("%s of %s waits behind another, and has it: %v", m.name, q.prefix, got.err)
		case <-m.session.Done():
			return "", fmt.Errorf("%s of %s: its session has ended", m.name, q.prefix)
		default:
		}
	}
	return fmt.Sprintf("%s: %s", q.prefix, strings.Join(names, " ")), nil
}

// Puts those that wait behind the first in the order in which the server has them.
func (q *queue) reorder(stand []string) {
	slices.SortStableFunc(q.members[1:], func(a, b *member) int {
		return slices.Index(stand, fmt.Sprintf("%x", a.lease)) - slices.Index(stand, fmt.Sprintf("%x", b.lease))
	})
}

// The first member gives up what it has, and waits again behind all others.
func (q *queue) pass() error {
	m := q.members[0]
	if err := q.first(); err != nil {
		return err
	}
	ctx, cancel := within()
	defer cancel()
	if err := m.release(ctx); err != nil {
		return fmt.Errorf("%s gives up %s: %w", m.name, q.prefix, err)
	}
	m.leave()
	q.members = append(q.members[1:], m)
	if err := q.first(); err != nil {
		return err
	}
	m.wait(q)
	return q.stands(m)
}
