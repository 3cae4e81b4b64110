// What etcd's common tests find in its framework: the one that starts a cluster in their process, with external.go in it.
// tests/peers/etcd-tests/build.sh leaves out the framework's own file, which also has one that needs etcd's programs.

package framework

import (
	"go.etcd.io/etcd/tests/v3/framework/integration"
	intf "go.etcd.io/etcd/tests/v3/framework/interfaces"
)

var IntegrationTestRunner intf.TestRunner = integration.NewIntegrationRunner()
