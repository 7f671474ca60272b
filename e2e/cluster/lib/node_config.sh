# Configuration of a node's containerd, kubelet and kube-proxy, in the node's folder $S.
#
# Sandboxes often lack CAP_SYS_RESOURCE, so no process may lower its OOM score: hence the zeros and
# restrict_oom_score_adj. There may be no AppArmor and only cgroup v1: hence disable_apparmor and failCgroupV1.

containerd_config() {
  cat <<END
version = 2
root = "$S/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "$PAUSE_IMAGE"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$S/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
END
}

network_config() {
  cat <<END
{"cniVersion": "0.4.0", "name": "penstock", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "198.18.$N.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
}

kubelet_config() {
  cat <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$D/pki/ca.crt"}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP/node$N
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDNS: [198.18.0.1]
clusterDomain: cluster.local
resolvConf: "$S/resolv.conf"
volumePluginDir: "$S/kubelet/volume-plugins"
nodeStatusUpdateFrequency: 4s
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
END
}

proxy_config() {
  cat <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 198.18.0.0/16
clientConnection: {kubeconfig: "$D/pki/kube-proxy.kubeconfig"}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
oomScoreAdj: 0
iptables: {minSyncPeriod: 100ms}
END
}

# Names outside the cluster are answered with NXDOMAIN immediately.
dns_config() {
  cat <<END
cluster.local in-addr.arpa {
  bind $IP
  errors
  ready $IP:8181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $D/pki/coredns.kubeconfig penstock
    ttl 5
  }
  cache 5
}
. {
  bind $IP
  template ANY ANY {
    rcode NXDOMAIN
  }
}
END
}
