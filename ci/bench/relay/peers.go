package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// proxy is something that carries connections to the endpoint.
type proxy struct {
	name  string
	start func(context.Context) (*running, error)
}

// running is a proxy at work.
type running struct {
	at  string
	cmd *exec.Cmd // nil for none
}

func (r *running) stop() {
	if r.cmd != nil {
		_ = r.cmd.Process.Signal(os.Interrupt)
		_ = r.cmd.Wait()
	}
}

// pids are the process and its children.
func (r *running) pids() []int {
	if r.cmd == nil {
		return nil
	}
	pids := []int{r.cmd.Process.Pid}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pids[0], pids[0]))
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// prepare sets up the namespace: it is this program's own.
func prepare() error {
	for _, c := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", "198.18.0.1/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", c...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(c, " "), err, out)
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

// launch starts a program and waits until its address carries connections.
func launch(ctx context.Context, at string, env []string, name string, args ...string) (*running, error) {
	if _, err := os.Stat(name); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &running{at: at, cmd: cmd}
	var err error
	for range 200 {
		if err = reachable(at); err == nil {
			return r, nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	r.stop()
	return nil, fmt.Errorf("%s does not serve %s: %w", filepath.Base(name), at, err)
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

func direct() proxy {
	return proxy{"no proxy", func(context.Context) (*running, error) { return &running{at: endpointAddr}, nil }}
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

// tandem is the whole program: the way through a cluster IP and the rules is
// part of what is measured.
func tandem(dir string) proxy {
	return proxy{"tandem", func(ctx context.Context) (*running, error) {
		manifests := filepath.Join(dir, "manifests")
		if err := os.MkdirAll(manifests, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(manifests, "bench.yaml"), []byte(manifest), 0o644); err != nil {
			return nil, err
		}
		// Without a route the host's own packets to a cluster IP go nowhere.
		if out, err := exec.Command("ip", "route", "replace", "10.96.0.0/16", "dev", "lo").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip route: %w: %s", err, out)
		}
		return launch(ctx, "10.96.0.10:80", nil, filepath.Join(dir, "tandem"),
			"run", "--manifests", manifests, "--node", "bench", "--proxy-mode", "userspace", "--log-level", "error")
	}}
}

func nginx(dir string) proxy {
	const config = `daemon off; worker_processes auto; worker_rlimit_nofile 65536; pid %[1]s/nginx.pid; error_log /dev/null;
load_module %[1]s/peers/usr/lib/nginx/modules/ngx_stream_module.so;
events { worker_connections 16384; }
stream { access_log off; server { listen 127.0.0.1:9001 backlog=4096; proxy_pass %[2]s; } }
`
	return peer(dir, "nginx", "127.0.0.1:9001", fmt.Sprintf(config, dir, endpointAddr), "-p", dir, "-c")
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
	threads, _ := exec.Command("nproc").Output()
	n, _ := strconv.Atoi(strings.TrimSpace(string(threads)))
	return peer(dir, "haproxy", "127.0.0.1:9002", fmt.Sprintf(config, max(n, 1), endpointAddr), "-db", "-f")
}

// peer is a program of a Debian package with a configuration.
func peer(dir, name, at, config string, args ...string) proxy {
	return proxy{name, func(ctx context.Context) (*running, error) {
		file := filepath.Join(dir, name+".conf")
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			return nil, err
		}
		libs := []string{"LD_LIBRARY_PATH=" + os.Getenv("PEER_LIBS")}
		return launch(ctx, at, libs, filepath.Join(dir, "peers/usr/sbin", name), append(args, file)...)
	}}
}
