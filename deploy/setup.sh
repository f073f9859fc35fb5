# Sourced by ./quickstart, ./run-tests and .ci/run: distribution packages and the release build.

# What the build and the tests need, by distribution. Debian 12 is what we test on.
lodestone_packages() {
  local id=${1:-debian}
  local common="build-essential cmake ninja-build pkg-config ccache mold curl ca-certificates
    protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libabsl-dev
    prometheus-cpp-dev libpcre2-dev libcli11-dev libxxhash-dev libssl-dev libgtest-dev libgmock-dev"
  case "$id" in
    ubuntu) echo $common libboost1.83-dev libboost-json1.83-dev ;;
    *) echo $common libboost1.81-dev libboost-json1.81-dev ;;
  esac
}

# Used by some tests only, which skip with their reason where it is missing.
lodestone_test_packages() { echo nodejs npm prometheus; }

distribution_id() { (. /etc/os-release 2>/dev/null && echo "${ID:-unknown}") || echo unknown; }

# Prints those of "$@" that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    # A command that came from elsewhere (a newer nodejs, say) counts as well.
    case "$package" in nodejs) command -v node >/dev/null && continue ;; npm) command -v npm >/dev/null && continue ;; esac
    [ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" = "install ok installed" ] || echo "$package"
  done
}

# install_packages PURPOSE PACKAGE...: says what is missing and why, and installs it.
install_packages() {
  local purpose=$1 missing sudo=""
  shift
  if ! command -v apt-get >/dev/null; then
    echo "This needs: $* ($purpose). There is no apt here: install their like by hand." >&2
    return 0
  fi
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  echo "Installing from the distribution, $purpose:" $missing
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq || return 1
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# print_packages: the lists of both distributions, for --no-install.
print_packages() {
  echo "Debian 12 (tested):    apt-get install --no-install-recommends" $(lodestone_packages debian)
  echo "Ubuntu 24.04 (listed): apt-get install --no-install-recommends" $(lodestone_packages ubuntu)
  echo "Some tests also use:   apt-get install --no-install-recommends" $(lodestone_test_packages)
}

# build_preset PRESET [TARGET...]: configures and builds; ninja shows [step/steps].
build_preset() {
  local preset=$1 started
  shift
  started=$(date +%s)
  cmake --preset "$preset" >"build-$preset.log" 2>&1 || { cat "build-$preset.log" >&2; return 1; }
  rm -f "build-$preset.log"
  NINJA_STATUS="[%f/%t %es] " cmake --build --preset "$preset" ${1:+--target "$@"} || return 1
  echo "Built preset $preset in $(($(date +%s) - started)) s"
}
