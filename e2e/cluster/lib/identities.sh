# Identities in a cluster: one authority, certificates for servers, a token and a kubeconfig for each client.
# They are in $D/pki, readable only by its owner, and are deleted with the cluster.

new_authority() {
  mkdir -p "$D/pki"; chmod 700 "$D" "$D/pki"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=penstock-e2e \
    -keyout "$D/pki/ca.key" -out "$D/pki/ca.crt" 2>/dev/null
  openssl genrsa -out "$D/pki/service-accounts.key" 2048 2>/dev/null
}

# certificate NAME SUBJECT [ALTERNATIVE-NAMES]
certificate() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "$2" \
    -CA "$D/pki/ca.crt" -CAkey "$D/pki/ca.key" ${3:+-addext "subjectAltName=$3"} \
    -keyout "$D/pki/$1.key" -out "$D/pki/$1.crt" 2>/dev/null
}

server_certificate() {
  certificate kube-apiserver /CN=kube-apiserver "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,$(
  )DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:198.18.0.1,IP:198.19.0.1"
}

# client NAME USER GROUP SERVER: creates a token for the API server, and $D/pki/NAME.kubeconfig with it.
client() {
  local token; token=$(openssl rand -hex 16)
  echo "$token,$2,$1,\"$3\"" >>"$D/pki/tokens"
  (umask 077; cat >"$D/pki/$1.kubeconfig") <<END
apiVersion: v1
kind: Config
clusters: [{name: penstock, cluster: {server: "$4", certificate-authority: "$D/pki/ca.crt"}}]
users: [{name: $1, user: {token: $token}}]
contexts: [{name: penstock, context: {cluster: penstock, user: $1}}]
current-context: penstock
END
}
