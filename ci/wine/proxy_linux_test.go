// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestProxy runs the Windows program through the events of a node, one after
// the other on one HNS.
func TestProxy(t *testing.T) {
	p := open(t)
	n := newNode(t, p, hnsemu.WS2025)
	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.2=node-2"))
	n.write("dns.yaml", service("dns", "10.96.0.11", 53, "10.244.2.3=node-2"))
	n.start()
	n.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
	n.serves("10.96.0.11", "10.244.2.3")
	n.sound()

	t.Run("one endpoint replaced", func(t *testing.T) { n.replaceOne(t) })
	t.Run("killed and started", func(t *testing.T) { n.restart(t, (*os.Process).Kill) })
	t.Run("ended and started", func(t *testing.T) {
		n.restart(t, func(p *os.Process) error { return p.Signal(os.Interrupt) })
	})
	t.Run("HNS is down for a while", func(t *testing.T) { n.hnsDown(t) })
	t.Run("HNS loses everything at a restart", func(t *testing.T) { n.hnsLoses() })
	t.Run("the same calls as in Go", func(t *testing.T) { n.sameCalls(t) })
	t.Run("what HNS holds", func(t *testing.T) { n.hns(t) })
	t.Run("the Service goes", func(t *testing.T) {
		n.remove("web.yaml")
		n.serves("10.96.0.10", "")
		n.serves("10.96.0.11", "10.244.2.3")
	})
	n.sound()
	n.stop(func(p *os.Process) error { return p.Signal(os.Interrupt) })
	if h := n.emu.Handles(); h != 0 {
		t.Errorf("%d handles are left open by a program that has exited normally", h)
	}
}

// TestNetworkComesAfterTheProxy starts the program on a node whose CNI plug-in has not made the
// network of the pods yet. It says so, in its log and to whoever asks for its health, and goes
// on when the network comes.
func TestNetworkComesAfterTheProxy(t *testing.T) {
	p := open(t)
	n := newNode(t, p, hnsemu.WS2025)
	n.emu.RemoveNetwork(n.network)
	n.write("dns.yaml", service("dns", "10.96.0.11", 53, "10.244.2.3=node-2"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	healthz := l.Addr().String()
	l.Close()
	n.startAs(n.tandem("run", "--metrics-bind-address", "", "--healthz-bind-address", healthz))
	health := func(path string) (status int, text string) {
		r, err := http.Get("http://" + healthz + path)
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		body, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
		if err != nil {
			t.Error(err)
		}
		return r.StatusCode, string(body)
	}
	const missing = "HNS has no l2bridge or overlay network yet; a CNI plug-in creates it"
	eventually(n, "its health states what is missing", func() bool {
		status, text := health("/healthz?verbose")
		return status == http.StatusServiceUnavailable && strings.Contains(text, missing)
	})
	if status, text := health("/livez"); status != http.StatusOK {
		t.Errorf("a restart would not help, and it says %d: %s", status, text)
	}
	if !strings.Contains(n.log.String(), missing) {
		t.Error("the log does not say it")
	}
	n.network = n.emu.AddNetwork("cbr0", hns.TypeL2Bridge)
	n.serves("10.96.0.11", "10.244.2.3")
	eventually(n, "it is healthy", func() bool { status, _ := health("/healthz"); return status == http.StatusOK })
	n.stop(func(p *os.Process) error { return p.Signal(os.Interrupt) })
	if h := n.emu.Handles(); h != 0 {
		t.Errorf("%d handles are left open", h)
	}
}

// node is a Windows node: an HNS, and the program under Wine with its manifests.
type node struct {
	testing.TB
	prefix    *prefix
	emu       *hnsemu.Emulator
	network   string
	addr      string
	exe       string
	manifests string
	source    []string // the flags for the source of Services
	proxy     *exec.Cmd
	log       output
}

// output collects what a program prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func newNode(t *testing.T, p *prefix, v hns.Version) *node {
	n := &node{TB: t, prefix: p, emu: hnsemu.New(v), exe: build(t), manifests: t.TempDir()}
	n.source = []string{"--manifests", windowsPath(n.manifests)}
	n.network = n.emu.AddNetwork("cbr0", hns.TypeL2Bridge)
	for _, pod := range []string{"10.244.1.2", "10.244.1.3"} {
		n.emu.AddPod(n.network, pod)
	}
	n.addr = serveHNS(t, n.emu)
	t.Cleanup(func() {
		if n.proxy != nil {
			n.stop((*os.Process).Kill)
		}
		if t.Failed() {
			t.Logf("the program said:\n%s", n.log.String())
		}
	})
	os.RemoveAll(filepath.Join(p.dir, "drive_c/ProgramData/Tandem")) // of an earlier test
	n.write("node.yaml", nodeManifest)
	return n
}

// serveHNS serves an emulator until the end of the test, and returns where.
func serveHNS(t *testing.T, emu *hnsemu.Emulator) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- emu.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// start runs the program.
func (n *node) start() {
	n.Helper()
	n.startAs(n.tandem("run", "--metrics-bind-address", "", "--log-level", "debug"))
}

// startAs runs the program by a command line of its own.
func (n *node) startAs(c *exec.Cmd) {
	n.Helper()
	n.proxy = c
	n.proxy.Stdout, n.proxy.Stderr = &n.log, &n.log
	n.proxy.WaitDelay = time.Second
	if err := n.proxy.Start(); err != nil {
		n.Fatal(err)
	}
}

// tandem is the program with a verb, for this node and its Services.
func (n *node) tandem(args ...string) *exec.Cmd {
	c := n.prefix.command(slices.Concat([]string{n.exe}, args, n.source, []string{"--hostname-override", "node-1", "--proxy-mode", "kernelspace"})...)
	c.Env = append(c.Env, "HNSEMU_ADDR="+n.addr)
	return c
}

// windowsPath is a path of this machine as Wine's programs see it.
func windowsPath(path string) string { return `Z:` + strings.ReplaceAll(path, "/", `\`) }

// stop ends the program.
func (n *node) stop(how func(*os.Process) error) {
	n.Helper()
	if err := how(n.proxy.Process); err != nil {
		n.Error(err)
	}
	n.proxy.Wait() // its exit code does not matter
	n.proxy = nil
}

func (n *node) write(file, text string) {
	n.Helper()
	tmp := filepath.Join(n.manifests, file+".new")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(n.manifests, file)); err != nil {
		n.Fatal(err)
	}
}

func (n *node) remove(file string) {
	n.Helper()
	if err := os.Remove(filepath.Join(n.manifests, file)); err != nil {
		n.Fatal(err)
	}
}

// serves waits until a VIP is balanced over exactly these endpoints.
func (n *node) serves(vip, endpoints string) {
	n.Helper()
	eventually(n, fmt.Sprintf("%s is balanced over %q; it is %q", vip, endpoints, n.served(vip)), func() bool { return n.served(vip) == endpoints })
}

func (n *node) served(vip string) string {
	addrs := map[string]string{}
	for _, e := range n.emu.Endpoints() {
		addrs[e.ID] = e.IpConfigurations[0].IpAddress
	}
	for _, lb := range n.emu.Balancers() {
		if slices.Equal(lb.FrontendVIPs, []string{vip}) {
			var all []string
			for _, id := range lb.HostComputeEndpoints {
				all = append(all, addrs[id])
			}
			slices.Sort(all)
			return strings.Join(all, " ")
		}
	}
	return ""
}

// sound demands that nothing is as it must never be, once the program rests: a
// change is visible before its last handle is closed.
func (n *node) sound() {
	n.Helper()
	var err error
	for range 100 {
		if err = n.emu.Check(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.Error(err)
}
