# Commands of etcd and of Kubernetes' processes. The functions print one word per line.

# etcd listens on sockets in $D; the addresses that it must advertise are not used.
etcd_command() {
  printf '%s\n' "$BIN/etcd" --data-dir="$D/etcd" --unsafe-no-fsync --log-level=warn \
    --listen-client-urls="unix://$D/etcd.sock" --advertise-client-urls=http://localhost:2379 \
    --listen-peer-urls="unix://$D/peer.sock"
}

apiserver_command() {
  printf '%s\n' "$BIN/kube-apiserver" --etcd-servers="unix://$D/etcd.sock" \
    --tls-cert-file="$D/pki/kube-apiserver.crt" --tls-private-key-file="$D/pki/kube-apiserver.key" \
    --token-auth-file="$D/pki/tokens" --authorization-mode=Node,RBAC --allow-privileged=true \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$D/pki/service-accounts.key" \
    --service-account-signing-key-file="$D/pki/service-accounts.key" \
    --service-cluster-ip-range=198.19.0.0/16 --shutdown-delay-duration=0s
}

# With the controllers' default of 20 requests per second, the start is slow.
controllers_command() {                          # controllers_command KUBECONFIG
  printf '%s\n' "$BIN/kube-controller-manager" --kubeconfig="$1" --secure-port=0 --leader-elect=false \
    --kube-api-qps=200 --kube-api-burst=400 --use-service-account-credentials=true \
    --service-account-private-key-file="$D/pki/service-accounts.key" --root-ca-file="$D/pki/ca.crt"
}

scheduler_command() {                            # scheduler_command KUBECONFIG
  printf '%s\n' "$BIN/kube-scheduler" --kubeconfig="$1" --secure-port=0 --leader-elect=false
}
