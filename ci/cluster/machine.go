// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
)

// Folders of a machine.
const (
	partsDir  = "/opt/cluster" // programs: upstream, kubernetes, containerd, coredns
	configDir = "/etc/cluster" // certificates and configurations
	logDir    = "/var/log/cluster"
)

// machine is what process 1 of a machine reads: what it mounts, and the programs it runs.
type machine struct {
	Name     string
	Root     string            // a folder of a Debian, which stays as it is
	Work     string            // a folder for what changes in this machine
	Binds    []bind            // in this order
	Sysctls  map[string]string // of the machine's network
	Masked   map[string]string // kernel parameters of the whole machine, which files hide
	Address  string            // programs start when the machine has it
	Forward  string            // where connections of the inherited listener go
	Programs []program         // in this order, each when the one before is ready
}

// bind is a folder of the host in a machine.
type bind struct {
	From, To string
	ReadOnly bool
}

// program is started again whenever it ends.
type program struct {
	Name  string
	Args  []string
	Env   []string
	Ready string // network:address that accepts connections when it is up; empty: at once
}

// layout has where things of a cluster are on the host.
type layout struct {
	State string            // the folder of all that is removed with the cluster
	Root  string            // the Debian of the cache
	Parts map[string]string // folders of the cache by their names in partsDir
}

func (l layout) config() string             { return path.Join(l.State, "etc") }
func (l layout) bin() string                { return path.Join(l.State, "bin") }
func (l layout) work(name string) string    { return path.Join(l.State, "machines", name) }
func (l layout) kubeconfig() string         { return path.Join(l.State, "admin.conf") }
func (l layout) installed() string          { return path.Join(l.State, "proxy") } // its name for -runs
func (l layout) tool(part, n string) string { return path.Join(l.Parts[part], n) }

// common is what all machines have.
func (l layout) common(n node) machine {
	m := machine{
		Name: n.Name, Root: l.Root, Work: l.work(n.Name), Address: n.Addr[0].String(),
		Binds: []bind{{From: l.config(), To: configDir, ReadOnly: true}, {From: path.Join(l.work(n.Name), "log"), To: logDir}},
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/default/forwarding": "1",
			"net/ipv6/conf/default/accept_dad": "0", "net/ipv6/conf/all/accept_dad": "0",
			// Which way a load balancer's packets go depends on addresses alone.
			"net/ipv4/fib_multipath_hash_policy": "0",
		},
		// What kubelet wants, on this machine only in these files.
		Masked: map[string]string{
			"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
			"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
		},
	}
	for name, folder := range l.Parts {
		m.Binds = append(m.Binds, bind{From: folder, To: path.Join(partsDir, name), ReadOnly: true})
	}
	return m
}

// control is the control machine of a plan.
func (l layout) control(p plan) machine {
	m := l.common(p.Control)
	m.Forward = "127.0.0.1:6443"
	m.Binds = append(m.Binds, bind{From: path.Join(m.Work, "etcd"), To: "/var/lib/etcd"}, bind{From: l.bin(), To: partsDir + "/bin", ReadOnly: true})
	kubernetes, file := partsDir+"/kubernetes/", func(name string) string { return path.Join(configDir, name) }
	local := "127.0.0.1"
	m.Programs = []program{
		{Name: "etcd", Ready: "tcp:" + local + ":2379", Args: []string{
			partsDir + "/upstream/etcd", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380",
		}},
		{Name: "kube-apiserver", Ready: "tcp:" + local + ":6443", Args: []string{
			kubernetes + "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443",
			"--advertise-address=" + p.Control.Addr[0].String(), "--cert-dir=/run/kubernetes",
			"--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"), "--client-ca-file=" + file("ca.crt"),
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + file("accounts.key"), "--service-account-signing-key-file=" + file("accounts.key"),
			"--service-cluster-ip-range=" + p.ranges(serviceNets), "--service-node-port-range=30000-32767",
			"--kubelet-client-certificate=" + file("kubelet-client.crt"), "--kubelet-client-key=" + file("kubelet-client.key"),
			"--kubelet-certificate-authority=" + file("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
			"--requestheader-client-ca-file=" + file("ca.crt"), "--requestheader-allowed-names=front-proxy",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
			"--proxy-client-cert-file=" + file("front-proxy.crt"), "--proxy-client-key-file=" + file("front-proxy.key"),
			"--audit-policy-file=" + file("audit.yaml"), "--audit-log-path=" + logDir + "/audit.log", "--audit-log-mode=batch",
		}},
		{Name: "kube-controller-manager", Args: []string{
			kubernetes + "kube-controller-manager", "--kubeconfig=" + file("controller-manager.conf"), "--leader-elect=false",
			"--use-service-account-credentials", "--service-account-private-key-file=" + file("accounts.key"), "--root-ca-file=" + file("ca.crt"),
			"--cluster-signing-cert-file=" + file("ca.crt"), "--cluster-signing-key-file=" + file("ca.key"), "--cluster-cidr=" + p.ranges(podNets),
			"--allocate-node-cidrs=false", "--cert-dir=/run/kubernetes",
		}},
		{Name: "kube-scheduler", Args: []string{
			kubernetes + "kube-scheduler", "--kubeconfig=" + file("scheduler.conf"), "--leader-elect=false", "--cert-dir=/run/kubernetes",
			"--authentication-kubeconfig=" + file("scheduler.conf"), "--authorization-kubeconfig=" + file("scheduler.conf"),
		}},
		{Name: "cloud", Args: []string{partsDir + "/bin/cluster", "cloud", file("plan.json")}},
	}
	return m
}

// worker is a node's machine.
func (l layout) worker(n node) machine {
	m := l.common(n)
	for _, folder := range []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods", "/var/log/containers"} {
		m.Binds = append(m.Binds, bind{From: path.Join(m.Work, "data", path.Base(path.Dir(folder))+"-"+path.Base(folder)), To: folder})
	}
	m.Binds = append(m.Binds, bind{From: path.Join(m.Work, "cni"), To: "/etc/cni/net.d", ReadOnly: true})
	m.Binds = append(m.Binds, bind{From: path.Join(l.State, "images"), To: "/var/lib/images", ReadOnly: true})
	env := []string{fmt.Sprintf("PATH=%s/containerd:/usr/sbin:/usr/bin:/sbin:/bin", partsDir)}
	m.Programs = []program{
		{Name: "containerd", Env: env, Ready: "unix:/run/containerd/containerd.sock", Args: []string{partsDir + "/containerd/containerd", "--config=" + configDir + "/containerd.toml"}},
		{Name: "kubelet", Env: env, Args: []string{
			partsDir + "/kubernetes/kubelet", "--kubeconfig=" + path.Join(configDir, n.Name+".conf"), "--config=" + path.Join(configDir, n.Name+".yaml"),
			"--hostname-override=" + n.Name, "--node-ip=" + join(n.Addr),
			"--node-labels=topology.kubernetes.io/region=lab,topology.kubernetes.io/zone=" + n.Zone,
		}},
	}
	return m
}
