// Runs kubeadm's own preflight check of an external etcd: kubeadm-etcd-check ENDPOINT [CA CERT KEY].
package main

import (
	"fmt"
	"os"

	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/preflight"
)

func main() {
	if len(os.Args) != 2 && len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: kubeadm-etcd-check ENDPOINT [CA CERT KEY]")
		os.Exit(2)
	}
	endpoints := os.Args[1:2]
	external := &kubeadmapi.ExternalEtcd{Endpoints: endpoints, HTTPEndpoints: endpoints}
	if len(os.Args) == 5 {
		external.CAFile, external.CertFile, external.KeyFile = os.Args[2], os.Args[3], os.Args[4]
	}
	check := preflight.ExternalEtcdVersionCheck{Etcd: kubeadmapi.Etcd{External: external}}
	warnings, errs := check.Check()
	for _, warning := range warnings {
		fmt.Println("warning:", warning)
	}
	for _, err := range errs {
		fmt.Println("error:", err)
	}
	if len(errs) > 0 {
		os.Exit(1)
	}
	fmt.Println(check.Name(), "passed")
}
