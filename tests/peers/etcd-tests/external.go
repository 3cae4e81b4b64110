// A cluster for etcd's integration tests that is a process outside of the tests.
//
// build.sh puts this file into the test framework of etcd, and gives other names to the functions there that
// it replaces. The members of a cluster are names of the one process. A test that needs more than a server at an
// address is skipped with the reason.
//
// KINDRED_SERVER is a JSON array: the program and its flags, in which {dir}, {port} and {other} are replaced.
// KINDRED_SERVER_OPTIONS lists etcd's flags that the program has, separated by commas. A test that wants another one is
// skipped, or runs without it if the list has it with a "!".

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/testutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const startLimit = 60 * time.Second

// server is the process behind all members of a cluster.
type server struct {
	args    []string
	address string
	log     *os.File
	command *exec.Cmd
	ended   chan error
	ports   []*os.File
}

// servers has the server of each cluster that is running, and the test that started it.
var servers = map[*Cluster]*server{}

// running is the test that has made the newest cluster.
var running testutil.TB

func skip(reason string) {
	running.Skip("kindred: " + reason)
}

func NewCluster(t testutil.TB, cfg *ClusterConfig) *Cluster {
	t.Helper()
	assertInTestContext(t)
	running = t
	s := &server{}
	if err := s.prepare(cfg); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Cfg: cfg}
	servers[c] = s
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	for i := range max(cfg.Size, 1) {
		m, err := s.member(t, cfg, i)
		if err != nil {
			c.Terminate(t)
			t.Fatal(err)
		}
		c.Members = append(c.Members, m)
	}
	return c
}

// prepare makes the command line from what the test wants of its cluster.
func (s *server) prepare(cfg *ClusterConfig) error {
	var args []string
	if err := json.Unmarshal([]byte(os.Getenv("KINDRED_SERVER")), &args); err != nil {
		return fmt.Errorf("KINDRED_SERVER: %w", err)
	}
	dir, err := os.MkdirTemp(os.Getenv("KINDRED_SERVER_DIR"), "server-")
	if err != nil {
		return err
	}
	ports := make([]string, 2)
	for i := range ports {
		if ports[i], err = s.port(); err != nil {
			return err
		}
	}
	s.address = "127.0.0.1:" + ports[0]
	fill := strings.NewReplacer("{dir}", filepath.Join(dir, "data"), "{port}", ports[0], "{other}", ports[1])
	for _, arg := range append(args, options(cfg)...) {
		s.args = append(s.args, fill.Replace(arg))
	}
	if cfg.ClientTLS != nil {
		for i, arg := range s.args {
			s.args[i] = strings.ReplaceAll(arg, "http://"+s.address, "https://"+s.address)
		}
	}
	s.log, err = os.Create(filepath.Join(dir, "log"))
	return err
}

// port finds a free port below those of outgoing connections, and keeps it until the end, as tests/src/ports.rs does.
func (s *server) port() (string, error) {
	const first, count, tries, locks = 15000, 17000, 1000, "/tmp/kindred-test-ports"
	if err := os.MkdirAll(locks, 0o755); err != nil {
		return "", err
	}
	for range tries {
		port := strconv.Itoa(first + rand.IntN(count))
		lock, err := os.Create(filepath.Join(locks, port))
		if err != nil {
			return "", err
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
				s.ports = append(s.ports, lock)
				return port, l.Close()
			}
		}
		lock.Close()
	}
	return "", fmt.Errorf("no free port after %d tries", tries)
}

func options(cfg *ClusterConfig) []string {
	var flags []string
	add := func(flag string, value any) {
		has := strings.Split(os.Getenv("KINDRED_SERVER_OPTIONS"), ",")
		if slices.Contains(has, "!"+flag) {
			return
		}
		if !slices.Contains(has, flag) {
			skip("the server has no --" + flag)
		}
		flag = "--" + flag
		if value != nil {
			flag = fmt.Sprintf("%s=%v", flag, value)
		}
		flags = append(flags, flag)
	}
	if cfg.QuotaBackendBytes != 0 {
		add("quota-backend-bytes", cfg.QuotaBackendBytes)
	}
	if cfg.MaxTxnOps != 0 {
		add("max-txn-ops", cfg.MaxTxnOps)
	}
	if cfg.MaxRequestBytes != 0 {
		add("max-request-bytes", cfg.MaxRequestBytes)
	}
	if cfg.WatchProgressNotifyInterval != 0 {
		add("watch-progress-notify-interval", cfg.WatchProgressNotifyInterval)
	}
	if cfg.GRPCKeepAliveMinTime != 0 {
		add("grpc-keepalive-min-time", cfg.GRPCKeepAliveMinTime)
	}
	if cfg.AuthToken != "" {
		add("auth-token", cfg.AuthToken)
	}
	if tls := cfg.ClientTLS; tls != nil {
		add("cert-file", tls.CertFile)
		add("key-file", tls.KeyFile)
		if tls.TrustedCAFile != "" {
			add("trusted-ca-file", tls.TrustedCAFile)
		}
		if tls.ClientCertAuth {
			add("client-cert-auth", nil)
		}
	}
	return flags
}

func (s *server) start() error {
	s.command = exec.Command(s.args[0], s.args[1:]...)
	s.command.Stdout, s.command.Stderr = s.log, s.log
	if err := s.command.Start(); err != nil {
		return err
	}
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.command.Wait() }()
	for begin := time.Now(); time.Since(begin) < startLimit; {
		if conn, err := net.Dial("tcp", s.address); err == nil && stays(conn) {
			return nil
		}
		select {
		case err := <-s.ended:
			said, _ := os.ReadFile(s.log.Name())
			s.command = nil
			return fmt.Errorf("%v has ended: %v\n%s", s.args, err, said)
		case <-time.After(3 * time.Millisecond):
		}
	}
	return fmt.Errorf("not ready after %v: %v, see %s", startLimit, s.args, s.log.Name())
}

// stays tells a server from `kindred up` that looks whether the address is free: that takes connections and drops them at once.
func stays(conn net.Conn) bool {
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(60 * time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

func (s *server) kill() {
	if s.command != nil {
		s.command.Process.Kill()
		<-s.ended
		s.command = nil
	}
}

// patient waits for the server while that restarts: a bridge ends when it cannot connect.
type patient struct{ address string }

func (p patient) Dial() (net.Conn, error) {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", p.address)
		if err == nil || time.Since(begin) > RequestTimeout {
			return conn, err
		}
	}
}

// member makes a name of the server. With a bridge its clients connect through that.
func (s *server) member(t testutil.TB, cfg *ClusterConfig, number int) (*Member, error) {
	m := &Member{
		MemberNumber:             number,
		ClientTLSInfo:            cfg.ClientTLS,
		ClientMaxCallSendMsgSize: cfg.ClientMaxCallSendMsgSize,
		ClientMaxCallRecvMsgSize: cfg.ClientMaxCallRecvMsgSize,
		UseBridge:                cfg.UseBridge,
		UseTCP:                   true,
	}
	m.Name = fmt.Sprintf("m%d", number)
	m.Logger, m.LogObserver = memberLogger(t, m.Name)
	address, scheme := s.address, m.clientScheme()
	if cfg.UseBridge {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		address = l.Addr().String()
		m.GRPCBridge = newBridge(patient{s.address}, l)
	}
	_, m.Port, _ = net.SplitHostPort(address)
	m.GRPCURL = scheme + "://" + strings.Replace(address, "127.0.0.1", "localhost", 1)
	m.ClientURLs = types.MustNewURLs([]string{scheme + "://" + address})
	var err error
	if m.Client, err = NewClientV3(m); err != nil {
		return nil, err
	}
	m.ServerClient = m.Client
	return m, nil
}

func (c *Cluster) Terminate(t testutil.TB) {
	for _, m := range c.Members {
		if m.Client != nil {
			m.Client.Close()
		}
		if m.GRPCBridge != nil {
			m.GRPCBridge.Close()
		}
	}
	if s := servers[c]; s != nil {
		s.kill()
		s.log.Close()
		for _, lock := range s.ports {
			lock.Close()
		}
		os.RemoveAll(filepath.Dir(s.log.Name()))
		delete(servers, c)
	}
}

// alone is the server of a cluster with this single member. A test that acts on one member of several is skipped.
func (m *Member) alone() *server {
	for c, s := range servers {
		if len(c.Members) == 1 && c.Members[0] == m {
			return s
		}
	}
	skip("acts on one member of several")
	return nil
}

func (m *Member) Stop(_ testutil.TB) {
	m.alone().kill()
}

func (m *Member) Restart(_ testutil.TB) error {
	s := m.alone()
	s.kill()
	return s.start()
}

func (m *Member) Terminate(t testutil.TB) {
	m.Stop(t)
}

// ID is what the server calls itself.
func (m *Member) ID() types.ID {
	client, err := NewClientV3(m)
	if err != nil {
		running.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), RequestTimeout)
	defer cancel()
	status, err := client.Status(ctx, m.GRPCURL)
	if err != nil {
		running.Fatal(err)
	}
	return types.ID(status.Header.MemberId)
}

// WaitOK waits until the server answers.
func (m *Member) WaitOK(t testutil.TB) {
	WaitClientV3(t, m.Client)
}

func (m *Member) WaitStarted(t testutil.TB) {
	m.WaitOK(t)
}

// WaitMembersForLeader says that the first member leads: all are names of one process.
func (c *Cluster) WaitMembersForLeader(t testutil.TB, membs []*Member) int {
	membs[0].WaitOK(t)
	return 0
}

func (m *Member) Pause()                                       { skip("acts on one member of several") }
func (m *Member) Resume()                                      { skip("acts on one member of several") }
func (m *Member) StopNotify() <-chan struct{}                  { skip("looks into the server"); return nil }
func (m *Member) ReadyNotify() <-chan struct{}                 { skip("looks into the server"); return nil }
func (m *Member) InjectPartition(_ testutil.TB, _ ...*Member)  { skip("acts on one member of several") }
func (m *Member) RecoverPartition(_ testutil.TB, _ ...*Member) { skip("acts on one member of several") }
func (c *Cluster) AddAndLaunchLearnerMember(_ testutil.TB)     { skip("changes the members") }
func (c *Cluster) WaitMembersNoLeader(_ []*Member)             { skip("acts on one member of several") }

func (c *Cluster) MustNewMember(_ testutil.TB) *Member {
	skip("changes the members")
	return nil
}

func (c *Cluster) RemoveMember(_ testutil.TB, _ *clientv3.Client, _ uint64) error {
	skip("changes the members")
	return nil
}

func (m *Member) Metric(_ string, _ ...string) (string, error) {
	skip("reads metrics of etcd")
	return "", nil
}
