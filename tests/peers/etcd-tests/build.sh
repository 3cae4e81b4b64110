# What tests/peers/install builds of etcd's own tests. Sourced by it, and part of the hash of the set.

# etcd's integration tests and its common ones, which the tests module carries, over a cluster that is a process outside of
# them. The functions of its framework that external.go replaces get other names.
etcd_tests_packages='integration/clientv3 integration/clientv3/concurrency integration/clientv3/examples
  integration/clientv3/experimental/recipes integration/clientv3/lease integration/clientv3/naming integration/clientv3/watch
  integration common'
etcd_tests_replaced='Stop|Restart|Terminate|ID|WaitOK|WaitStarted|WaitMembersForLeader|Pause|Resume|StopNotify'
etcd_tests_replaced+='|ReadyNotify|InjectPartition|RecoverPartition|AddAndLaunchLearnerMember|WaitMembersNoLeader'
etcd_tests_replaced+='|MustNewMember|RemoveMember|Metric'

etcd_tests_name() { # package -> name of its program
  case $1 in
    integration) echo api ;;
    *) echo "${1##*/}" ;;
  esac
}

build_etcd_tests() { # directory for the binaries
  local out=$1 version package source src=$1/../src
  version=$(pinned etcd-tests)
  source=$(module_source etcd-tests go.etcd.io/etcd/tests/v3)
  mkdir -p -- "$src/framework"
  cp -r -- "$source/integration" "$source/common" "$source/fixtures" "$src"
  cp -r -- "$source"/framework/{config,integration,interfaces,testutils} "$src/framework"
  chmod -R u+w -- "$src"
  # Not every proxy has the module of the cache.
  rm -- "$src/integration/cache_test.go"
  cp -- "$here/etcd-tests/go.mod" "$here/etcd-tests/go.sum" "$src"
  cp -- "$here/etcd-tests/external.go" "$src/framework/integration"
  cp -- "$here/etcd-tests/runner.go" "$src/framework"
  sed -i -E "s/^func NewCluster\(/func etcdNewCluster(/
    s/^func \((m \*Member|c \*Cluster)\) ($etcd_tests_replaced)\(/func (\1) etcd\2(/" "$src/framework/integration/cluster.go"
  for package in $etcd_tests_packages; do
    say "building etcd's tests of $package $version with go$have"
    (
      cd -- "$src" || exit
      export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly
      unset GOOS GOARCH
      # The tag is that of the common tests; the others have none.
      nice go test -vet=off -tags integration -trimpath -ldflags '-s -w' -c -o "$out/$(etcd_tests_name "$package")" "./$package"
    ) >&2 || die "building etcd's tests of $package failed (above)"
  done
  mv -- "$src/fixtures" "$out/../fixtures"
  rm -rf -- "$src"
}
