# The folder of the binaries, one for each content of the three files that pin them.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
BIN=$CACHE/k8s-$(cat "$HERE"/{go.mod,go.sum,tools} | sha256sum | cut -c1-12)

die() { echo "${0##*/}: $*" >&2; exit 1; }

# need TOOL...: fails with the command that builds missing tools.
need() {
  local tool missing=()
  for tool; do [[ -x $BIN/$tool ]] || missing+=("$tool"); done
  ((${#missing[@]} == 0)) || die "not built yet: ${missing[*]}; run: e2e/cluster/build ${missing[*]}"
}
