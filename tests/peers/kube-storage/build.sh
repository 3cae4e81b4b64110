# What tests/peers/install builds of Kubernetes' tests of its storage. Sourced by it, and part of the hash of the set.

# The tests of Kubernetes' apiserver for its storage, over a server outside of them: one file of the module is replaced.
kube_storage_packages='storage/etcd3 storage/cacher registry/generic/registry'

kube_storage_name() { # package -> name of its program
  echo "${1##*/}"
}

build_kube_storage() { # directory for the programs
  local out=$1 version package source src=$1/../src
  version=$(pinned kube-storage)
  source=$(module_source kube-storage k8s.io/apiserver)
  # Not as an overlay: Go takes none over its module cache.
  cp -r -- "$source" "$src"
  chmod -R u+w -- "$src"
  cp -- "$here/kube-storage/test_server.go" "$src/pkg/storage/etcd3/testserver/test_server.go"
  for package in $kube_storage_packages; do
    say "building Kubernetes' tests of $package $version with go$have"
    (
      cd -- "$src" || exit
      export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly
      unset GOOS GOARCH
      nice go test -vet=off -trimpath -ldflags '-s -w' -c -o "$out/$(kube_storage_name "$package")" "./pkg/$package"
    ) >&2 || die "building Kubernetes' tests of $package failed (above)"
  done
  rm -rf -- "$src"
}
