// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// proxy is something that carries connections to the endpoint.
type proxy struct {
	name  string
	peer  bool
	start func(ctx context.Context, dir string) (*carrier, error)
}

// carrier is a proxy at work.
type carrier struct {
	*process        // nil for none
	at       string // where it answers
}

func (r *carrier) end() {
	if r.process != nil {
		r.stop()
	}
}

func (r *carrier) pids() []int {
	if r.process == nil {
		return nil
	}
	return tree(r.pid(), true)
}

// prepareLoopback sets up the namespace: it is this program's own.
func prepareLoopback() error {
	for _, args := range []string{"link set lo up", "addr add 198.18.0.1/32 dev lo"} {
		if err := ip(args); err != nil {
			return err
		}
	}
	// Many connections end here in a short time. Where rules of any kind are, the
	// kernel tracks all flows, and its table is as large as the host's.
	for name, value := range map[string]string{
		"ipv4/ip_local_port_range": "10000 65000", "ipv4/tcp_tw_reuse": "1",
		"netfilter/nf_conntrack_tcp_timeout_time_wait": "1", "netfilter/nf_conntrack_tcp_timeout_close": "1",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// carry starts a program and waits until its address carries connections.
func carry(ctx context.Context, dir, at string, env []string, name string, args ...string) (*carrier, error) {
	if _, err := os.Stat(name); err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	p, err := launch(dir, cmd)
	if err != nil {
		return nil, err
	}
	err = until(ctx, 20*time.Second, 25*time.Millisecond, func() (bool, error) { return reachable(at) == nil, p.ended() })
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%s does not serve %s: %w:\n%s", filepath.Base(name), at, err, p.said())
	}
	return &carrier{process: p, at: at}, nil
}

func reachable(at string) error {
	c, err := net.DialTimeout("tcp", at, 100*time.Millisecond)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	return talk(c)
}

func noProxy() proxy {
	return proxy{name: "no proxy", start: func(context.Context, string) (*carrier, error) { return &carrier{at: endpointAddr}, nil }}
}

const manifest = `apiVersion: v1
kind: Service
metadata: {name: bench}
spec:
  clusterIP: 10.96.0.10
  ports: [{port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bench-1, labels: {kubernetes.io/service-name: bench}}
addressType: IPv4
ports: [{port: 9000, protocol: TCP}]
endpoints: [{addresses: [198.18.0.1], conditions: {ready: true}}]
`

// tandemRelay is the whole program: the way through a cluster IP and the rules is
// part of what is measured.
func tandemRelay(o options) proxy {
	return proxy{name: "Tandem", start: func(ctx context.Context, dir string) (*carrier, error) {
		manifests := filepath.Join(dir, "manifests")
		if err := os.MkdirAll(manifests, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(manifests, "bench.yaml"), []byte(manifest), 0o644); err != nil {
			return nil, err
		}
		// Without a route the host's own packets to a cluster IP go nowhere.
		if err := ip("route replace 10.96.0.0/16 dev lo"); err != nil {
			return nil, err
		}
		return carry(ctx, dir, "10.96.0.10:80", nil, o.tandem,
			"run", "--manifests", manifests, "--node", nodeName, "--proxy-mode", "userspace", "--log-level", "error")
	}}
}

func nginx(dir string) proxy {
	const config = `daemon off; worker_processes auto; worker_rlimit_nofile 65536; pid %[1]s/nginx.pid; error_log /dev/null;
load_module %[3]s/usr/lib/nginx/modules/ngx_stream_module.so;
events { worker_connections 16384; }
stream { access_log off; server { listen 127.0.0.1:9001 backlog=4096; proxy_pass %[2]s; } }
`
	return peer(dir, "nginx", "127.0.0.1:9001", fmt.Sprintf(config, dir, endpointAddr, os.Getenv("PEERS")), "-p", dir, "-c")
}

func haproxy(dir string) proxy {
	const config = `global
  maxconn 8192
  nbthread %d
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen bench
  bind 127.0.0.1:9002 backlog 4096
  server one %s
`
	return peer(dir, "haproxy", "127.0.0.1:9002", fmt.Sprintf(config, runtime.NumCPU(), endpointAddr), "-db", "-f")
}

// peer is a program of a Debian package, unpacked in PEERS, with a configuration.
func peer(dir, name, at, config string, args ...string) proxy {
	return proxy{name: name, peer: true, start: func(ctx context.Context, _ string) (*carrier, error) {
		file := filepath.Join(dir, name+".conf")
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			return nil, err
		}
		libs := []string{"LD_LIBRARY_PATH=" + os.Getenv("PEER_LIBS")}
		return carry(ctx, dir, at, libs, filepath.Join(os.Getenv("PEERS"), "usr/sbin", name), append(args, file)...)
	}}
}
