module kindred.invalid/tests/peers/kube-storage

go 1.26.0

require (
	k8s.io/apiserver v0.37.1
)
