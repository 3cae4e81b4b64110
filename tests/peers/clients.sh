# What tests/peers/install builds of clients that were written for etcd: their own tests, and small programs of ours.
# Sourced by it, and part of the hash of each set.

# The source of a module, which must be the pinned one.
module_source() { # set, module -> folder
  local set=$1 module=$2 version source
  version=$(pinned "$set")
  source=$(cd / && go mod download -json "$module@$version") || die "no $module $version"
  [[ $source == *"\"Sum\": \"$(<"$here/$set/sum")\""* ]] || die "$module $version is not what $set/sum says"
  sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$source"
}

# The tests of CoreDNS' etcd plugin, which ask the server that endpoint.go names.
build_coredns() { # directory for the program
  local out=$1 version source src=$1/../src
  version=$(pinned coredns)
  source=$(module_source coredns github.com/coredns/coredns)
  cp -r -- "$source" "$src"
  chmod -R u+w -- "$src"
  sed -i 's#\[\]string{"http://localhost:2379"}#[]string{endpoint()}#' "$src/plugin/etcd/lookup_test.go"
  cp -- "$here/coredns/endpoint.go" "$src/plugin/etcd/endpoint_test.go"
  say "building the tests of CoreDNS' etcd plugin $version with go$have"
  (
    cd -- "$src" || exit
    export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly
    unset GOOS GOARCH
    nice go test -vet=off -tags etcd -trimpath -ldflags '-s -w' -c -o "$out/coredns" ./plugin/etcd
  ) >&2 || die "building the tests of CoreDNS' etcd plugin failed (above)"
  rm -rf -- "$src"
}

# The tests of the etcd-client crate, of the version that the workspace's own tests use. They are built from a copy, as they
# expect their server at port 2379.
lock=$here/../../Cargo.lock
crate_version() { # -> version
  sed -n '/^name = "etcd-client"$/{n;s/^version = "\(.*\)"$/\1/p}' "$lock"
}

build_etcd_client() { # directory for the programs
  local out=$1 version src=$1/../src source test program
  version=$(crate_version)
  source=$(cd -- "$here" && cargo metadata --format-version 1 --locked | grep -o "\"[^\"]*/etcd-client-$version/Cargo.toml\"") ||
    die "cargo knows no etcd-client $version"
  source=${source//\"/}
  cp -r -- "${source%/Cargo.toml}" "$src"
  chmod -R u+w -- "$src"
  sed -i '/^pub const DEFAULT_TEST_ENDPOINT/d' "$src/tests/testing.rs"
  sed -i 's/Result, DEFAULT_TEST_ENDPOINT}/Result, endpoint}/; s/DEFAULT_TEST_ENDPOINT/endpoint()/' "$src"/tests/*.rs
  cat -- "$here/etcd-client/endpoint.rs" >>"$src/tests/testing.rs"
  say "building the tests of the etcd-client crate $version"
  for test in $etcd_client_tests; do
    program=$(
      cd -- "$src" && PROTOC=$here/../../proto/gen/protoc CARGO_TARGET_DIR=$src/target \
        nice cargo test --quiet --locked --no-run --test "$test" --message-format json |
        grep -o "\"executable\":\"[^\"]*/$test-[^\"]*\""
    ) || die "building the tests of the etcd-client crate failed (above)"
    program=${program#*:\"}
    cp -- "${program%\"}" "$out/$test"
  done
  rm -rf -- "$src"
}
etcd_client_tests='client namespace'

# Libraries of Python with the tests of their source archives, in an environment for each set of versions. Patroni's tests
# have no server, so its cases are ours.
python_clients='etcd3 aetcd etcd3gw patroni'

python_requirements() { # client -> file with all versions of its environment
  case $1 in
    etcd3gw) echo aetcd.txt ;;
    *) echo "$1.txt" ;;
  esac
}

python_version() { # client -> version
  sed -n "s/^$1==//p" "$here/python/$(python_requirements "$1")"
}

build_python() { # directory for the programs
  local out=$1 root client version file tests
  root=$(dirname -- "$out")
  for file in etcd3 aetcd patroni; do
    say "installing the libraries of python/$file.txt"
    {
      # Only its python is used, which works wherever the environment is moved to.
      python3 -m venv "$root/$file-env" && "$root/$file-env/bin/python" -m pip install -q --disable-pip-version-check -r "$here/python/$file.txt"
    } >&2 || die "installing python/$file.txt failed (above)"
  done
  cp -- "$here/python/report.py" "$root"
  for client in $python_clients; do
    version=$(python_version "$client")
    file=$(python_requirements "$client")
    tests=$client-$version
    if [[ -e $here/python/test_$client.py ]]; then
      mkdir -- "$root/$tests"
      cp -- "$here/python/test_$client.py" "$root/$tests"
    else
      {
        "$root/${file%.txt}-env/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d "$root" "$client==$version" &&
          tar -xzf "$root/$tests.tar.gz" -C "$root"
      } >&2 || die "no source archive of $client $version"
    fi
    {
      echo '#!/bin/sh'
      echo "root=\${0%/bin/*} tests=\${0%/bin/*}/$tests"
      echo 'cd "$tests" || exit'
      echo "PYTHONPATH=\$root PYTHONSAFEPATH=1 exec \"\$root/${file%.txt}-env/bin/python\" -m pytest -q -p report -p no:cacheprovider -c /dev/null \\"
      echo "  -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function $(python_tests "$client") \"\$@\""
    } >"$out/$client"
    chmod 755 -- "$out/$client"
  done
}

python_tests() { # client -> where its tests are
  case $1 in
    etcd3) echo '"$tests/tests/test_etcd3.py"' ;;
    aetcd) echo '"$tests/tests/integration"' ;;
    etcd3gw) echo '--pyargs etcd3gw.tests.test_etcd3gw' ;;
    patroni) echo '"$tests/test_patroni.py"' ;;
  esac
}

# npm's etcd3 with cases of ours, as its package has no tests.
build_node() { # directory for the programs
  local out=$1 root
  root=$(dirname -- "$out")
  say "installing npm's etcd3 $(node_version)"
  cp -- "$here/node/package.json" "$here/node/package-lock.json" "$here/node/main.js" "$root"
  (cd -- "$root" && npm ci --ignore-scripts --no-audit --no-fund) >&2 || die "npm ci failed (above)"
  printf '#!/bin/sh\nexec node "${0%%/bin/*}/main.js"\n' >"$out/etcd3"
  chmod 755 -- "$out/etcd3"
}

node_version() {
  sed -n 's/.*"etcd3": "\(.*\)".*/\1/p' "$here/node/package.json"
}

# Java's jetcd with cases of ours: its own tests are not published, and want containers.
java_version() {
  sed -n '/<artifactId>jetcd-core</{n;s#.*<version>\(.*\)</version>.*#\1#p}' "$here/java/pom.xml"
}

build_java() { # directory for the programs
  local out=$1 root
  root=$(dirname -- "$out")
  say "installing Java's jetcd-core $(java_version)"
  cp -- "$here/java/pom.xml" "$root"
  (cd -- "$root" && mvn -B -q -ntp dependency:copy-dependencies) >&2 || die "mvn could not fetch jetcd-core (above)"
  (cd -- "$root/lib" && sha256sum -- *.jar) | diff -- - "$here/java/sums" >&2 ||
    die "the libraries of jetcd-core are not those of java/sums (above)"
  javac --release "$java_release" -cp "$root/lib/*" -d "$root/classes" "$here"/java/*.java >&2 || die "javac failed (above)"
  {
    echo '#!/bin/sh'
    echo 'root=${0%/bin/*}'
    # A process lives for seconds: one that starts fast is worth more than fast code.
    echo 'exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m -cp "$root/classes:$root/lib/*" Cases'
  } >"$out/jetcd-core"
  chmod 755 -- "$out/jetcd-core"
}
java_release=17
# What drives a browser to the admin page: a Node with playwright-core and axe-core. The browser is the machine's.
build_page() { # directory for the programs
  local out=$1 root
  root=$(dirname -- "$out")
  say "installing playwright-core $(page_version)"
  cp -- "$here/page/package.json" "$here/page/package-lock.json" "$root"
  (cd -- "$root" && npm ci --ignore-scripts --no-audit --no-fund) >&2 || die "npm ci failed (above)"
  {
    echo '#!/bin/sh'
    echo 'export KINDRED_PAGE_MODULES="${0%/bin/*}/node_modules" KINDRED_CHROMIUM="$(command -v chromium)"'
    echo 'exec node "$@"'
  } >"$out/page"
  chmod 755 -- "$out/page"
}

page_version() {
  sed -n 's/.*"playwright-core": "\([^"]*\)".*/\1/p' "$here/page/package.json"
}

# What a set of clients needs of the machine. Debian's packages are installed where that can be done.
missing() { # set -> what is missing, or nothing
  case $1 in
    python) has_tool 'python3 -c "import ensurepip, venv"' python3-venv || echo "python3 with venv" ;;
    node) has_tool 'node --version && npm --version' npm || echo "node and npm" ;;
    java)
      has_tool "java -version && javac --release $java_release -version && mvn --version" default-jdk-headless maven ||
        echo "Java $java_release and Maven"
      ;;
    page)
      has_tool 'node --version && npm --version' npm || echo "node and npm"
      has_tool 'chromium --version' chromium || echo "chromium"
      ;;
  esac
}
has_tool() { # command that shows it, packages
  local shows=$1
  shift
  if sh -c "$shows" >/dev/null 2>&1; then return; fi
  ((EUID == 0)) && command -v apt-get >/dev/null || return
  say "apt-get install $*"
  {
    DEBIAN_FRONTEND=noninteractive apt-get install -y "$@" ||
      { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y "$@"; }
  } >&2 || return
  sh -c "$shows" >/dev/null 2>&1
}
