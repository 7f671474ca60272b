# Paths and names of this user's cluster, and kubectl for it.
D=$(realpath -m "${PENSTOCK_CLUSTER:-/tmp/penstock-cluster-$(id -u)}")
CGROUP=penstock-$(cksum <<<"$D" | cut -d' ' -f1)
PAUSE_IMAGE=localhost/penstock/pause:3.10

kc() { "$BIN/kubectl" --kubeconfig "$D/kubeconfig" "$@"; }
