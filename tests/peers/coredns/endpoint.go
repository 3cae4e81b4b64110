//go:build etcd

package etcd

import "os"

// endpoint is where the tests find their etcd. As they are written, it is at port 2379.
func endpoint() string { return os.Getenv("KINDRED_URL") }
