# What tests/peers/install makes with cargo's tools: programs of cargo itself, and the previous build of kindred. Sourced by it.

cargo_programs='cargo-nextest cargo-deny'

cargo_version() { # program -> version
  sed -n "s/^astral-dev-toolchain-$1==\([^ ]*\).*/\1/p" "$here/cargo/requirements.txt"
}

# A wheel holds the program, so that nothing is compiled. Without Python, or on another platform, cargo compiles it.
build_cargo() { # directory for the programs
  local out=$1 root program
  root=$(dirname -- "$out")
  say "installing $cargo_programs"
  if python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --target "$root/wheels" -r "$here/cargo/requirements.txt" >&2; then
    for program in $cargo_programs; do mv -- "$root/wheels/bin/$program" "$out" || die "no $program in its wheel"; done
    rm -rf -- "$root/wheels"
    return
  fi
  say "no wheels can be had, so cargo compiles them"
  for program in $cargo_programs; do
    CARGO_TARGET_DIR=$root/target cargo install --quiet --locked --root "$root" "$program@$(cargo_version "$program")" >&2 ||
      die "cargo could not install $program (above)"
  done
  rm -rf -- "$root/target" "$root"/.crates*
}

# kindred as of the commit in tests/upgrade/PREVIOUS, with a target folder of its own.
previous_commit() { grep -v '^#' "$here/../upgrade/PREVIOUS" | tr -d '[:space:]'; }

previous_missing() { # -> what is missing, or nothing
  local commit root
  commit=$(previous_commit)
  [[ $commit =~ ^[0-9a-f]{40}$ ]] || die "tests/upgrade/PREVIOUS does not have the full id of one commit"
  # A tarball that lies in the work tree of another project has no history of this one either.
  root=$(git -C "$here" rev-parse --show-toplevel 2>/dev/null) || root=
  if [[ -z $root || $(cd -- "$root" && pwd) != "$(cd -- "$here/../.." && pwd)" ]]; then
    echo "git's history: nothing is tested beside another version"
  elif ! git -C "$here" cat-file -e "$commit^{commit}" 2>/dev/null; then
    echo "commit $commit in the history here: nothing is tested beside another version (git fetch --unshallow)"
  fi
}

build_previous() { # directory for the program
  local out=$1 commit src=$1/../src
  commit=$(previous_commit)
  mkdir -- "$src"
  git -C "$here/../.." archive --format=tar "$commit" | tar -x -C "$src" || die "git could not give the sources of $commit"
  say "building kindred as of $commit"
  (
    cd -- "$src" || exit
    CARGO_TARGET_DIR=$src/target CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false KINDRED_COMMIT=${commit:0:12} \
      "${CARGO:-cargo}" build --quiet --locked -p kindred --bin kindred
  ) >&2 || die "building $commit failed (above)"
  cp -- "$src/target/debug/kindred" "$out/previous"
  rm -rf -- "$src"
}
