# What tests/peers/install builds of a client with Kubernetes' storage. Sourced by it, and part of the hash of the set.

# The newest first, which go.mod has.
kube_consistency_versions='1.37 1.36 1.35'

kube_consistency_mod() { # version -> its file of modules
  if [[ -e $here/kube-consistency/$1.mod ]]; then echo "$1.mod"; else echo go.mod; fi
}

kube_consistency_version() { # version -> that of the module
  awk '$1 == "k8s.io/apiserver" { print $2; exit }' "$here/kube-consistency/$(kube_consistency_mod "$1")"
}

build_kube_consistency() { # directory for the programs
  local out=$1 version
  for version in $kube_consistency_versions; do
    say "building a client with the storage of Kubernetes $version with go$have"
    (
      cd -- "$here/kube-consistency" || exit
      export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly
      unset GOOS GOARCH
      nice go build -modfile="$(kube_consistency_mod "$version")" -trimpath -buildvcs=false -ldflags '-s -w' -o "$out/kube-consistency-$version" .
    ) >&2 || die "building a client with the storage of Kubernetes $version failed (above)"
  done
}
