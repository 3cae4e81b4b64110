// Clients of a cluster's etcd that are not apiservers: candidates of an election and holders of a lock by etcd's package
// concurrency (as Patroni's and Vault's), and writers with keys and leases of the form of Calico's and Cilium's. They work all
// the time, and check what they read against what was acknowledged.
//
// It takes a command a line on standard input and answers each with a line on standard output:
//
//	at ADDRESS  every client goes to this server, with the leases that it has
//	check       prints the leader, who waits behind it, and the same of the lock; who they are must not have changed
//	pass        the leader resigns and the lock is released; who has waited longest must be next
//	drop        the key of a session ends with its lease, which is revoked
//
// It ends with 0 when its input ends, and with 1 and a reason on standard error when something is wrong.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// No answer takes so long, on a busy machine and while a Kind moves.
const limit = time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "etcd-strangers:", err)
		os.Exit(1)
	}
}

func run() error {
	all := &strangers{}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		if len(words) == 0 {
			continue
		}
		said, err := all.do(words)
		if err == nil {
			err = all.wrong()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", commands.Text(), err)
		}
		fmt.Println(said)
	}
	all.stop()
	return all.wrong()
}

// Everybody, and who writes without a break.
type strangers struct {
	queues  []*queue
	writers []*writer
}

func (s *strangers) do(words []string) (string, error) {
	switch {
	case words[0] == "at" && len(words) == 2:
		return "there", s.at(words[1])
	case words[0] == "check":
		return s.check()
	case words[0] == "pass":
		for _, queue := range s.queues {
			if err := queue.pass(); err != nil {
				return "", err
			}
		}
		return s.check()
	case words[0] == "drop":
		for _, writer := range s.writers {
			if err := writer.drop(); err != nil {
				return "", err
			}
		}
		return s.check()
	}
	return "", fmt.Errorf("a command is at ADDRESS, check, pass or drop")
}

// Goes to a server. The first time everybody begins there.
func (s *strangers) at(address string) error {
	begins := s.queues == nil
	if begins {
		s.queues = []*queue{newQueue("service/strangers/leader", elections), newQueue("locks/strangers", locks)}
		s.writers = []*writer{calico(), cilium()}
	}
	for _, writer := range s.writers {
		if err := writer.at(address); err != nil {
			return err
		}
	}
	for _, queue := range s.queues {
		if err := queue.at(address); err != nil {
			return err
		}
	}
	return nil
}

func (s *strangers) check() (string, error) {
	var said []string
	for _, queue := range s.queues {
		order, err := queue.order()
		if err != nil {
			return "", err
		}
		said = append(said, order)
	}
	for _, writer := range s.writers {
		wrote, err := writer.check()
		if err != nil {
			return "", err
		}
		said = append(said, wrote)
	}
	return strings.Join(said, "; "), nil
}

// What a background task has found.
func (s *strangers) wrong() error {
	for _, writer := range s.writers {
		if err := writer.found(); err != nil {
			return err
		}
	}
	return nil
}

func (s *strangers) stop() {
	for _, writer := range s.writers {
		writer.halt()
	}
}

func connect(address string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: limit})
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limit)
}
