// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/linux/netns"
)

// TestMain is the real program in a child that a test starts.
func TestMain(m *testing.M) {
	if os.Getenv("TANDEM_TEST_PROGRAM") != "" {
		main()
	}
	os.Exit(m.Run())
}

// written collects what a process writes.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *written) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *written) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await waits until a process has written something.
func (o *written) await(t *testing.T, what string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(o.String(), what); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q in\n%s", what, o.String())
		}
	}
}

// program starts tandem in the calling thread's network namespace.
func program(ctx context.Context, args ...string) (*exec.Cmd, *written, error) {
	var out written
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TANDEM_TEST_PROGRAM=1")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd, &out, cmd.Start()
}

// testNode is a node in a network namespace of its own, which is closed when the test ends.
type testNode struct {
	*testing.T
	*netns.Net
}

func newTestNode(t *testing.T) testNode {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return testNode{t, n}
}

// do does something on the node.
func (n testNode) do(f func() error) {
	n.Helper()
	if err := n.Do(netns.Node, f); err != nil {
		n.Fatal(err)
	}
}

// start starts tandem on the node.
func (n testNode) start(args ...string) (cmd *exec.Cmd, out *written) {
	n.Helper()
	n.do(func() (err error) {
		cmd, out, err = program(n.Context(), args...)
		return err
	})
	return cmd, out
}

// started is start of what is ended when the test ends.
func (n testNode) started(args ...string) (cmd *exec.Cmd, out *written) {
	n.Helper()
	cmd, out = n.start(args...)
	n.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // its context has ended
	})
	return cmd, out
}

// ask runs tandem on the node to its end.
func (n testNode) ask(args ...string) (code int, out string) {
	n.Helper()
	cmd, said := n.start(args...)
	_ = cmd.Wait() // the exit code is checked
	return cmd.ProcessState.ExitCode(), said.String()
}

// serve starts tandem run on the node, waits until it has programmed its Services, and ends it when the test ends.
func (n testNode) serve(args ...string) *exec.Cmd {
	n.Helper()
	cmd, log := n.started(append([]string{"run", "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16"}, args...)...)
	log.await(n.T, "services programmed")
	return cmd
}

// connect connects from the node to places; no answer is needed.
func (n testNode) connect(places ...string) {
	n.Helper()
	n.do(func() error {
		for _, at := range places {
			if c, err := net.DialTimeout("tcp", at, time.Second); err == nil {
				_ = c.Close()
			}
		}
		return nil
	})
}

// An ordinary start, a change and a reload log no warning in any mode: one line says
// what was programmed, one line with --v=2 names the Service that changed, and no
// line is about gates of libraries.
func TestOrdinaryStartIsQuiet(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	for _, mode := range []string{"", "nftables", "iptables", "ipvs", "userspace"} {
		t.Run("mode "+cmp.Or(mode, "auto"), func(t *testing.T) {
			for range 3 {
				ordinaryStart(t, mode)
			}
		})
	}
}

func ordinaryStart(t *testing.T, mode string) {
	t.Helper()
	dir, err := demoFolder()
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	// The size of the conntrack table is the machine's: no namespace may raise it.
	head := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\nmode: \"" + mode + "\"\n" +
		"conntrack: {maxPerCore: 0}\n"
	write(file, head)
	cmd, out := newTestNode(t).start("run", "--config", file, "--manifests", dir, "--hostname-override", "demo-node", "--v", "2")
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		}
	}
	defer stop()
	out.await(t, `"mode chosen"`)
	if strings.Contains(out.String(), "mode unavailable") {
		t.Skipf("mode %s does not work here:\n%s", mode, out)
	}
	out.await(t, `"services programmed" services=1 endpoints=3 mode=`)
	slices := filepath.Join(dir, "endpoints.yaml")
	text, err := os.ReadFile(slices)
	if err != nil {
		t.Fatal(err)
	}
	write(slices, strings.Replace(string(text), demoGone.Addr().String(), demoSpare.Addr().String(), 1))
	out.await(t, `"service programmed" service="demo/hello" ports=1 endpoints=3`)
	write(file, head+"logging: {verbosity: 2}\n")
	out.await(t, `"configuration reloaded"`)
	stop()
	if first, _, _ := strings.Cut(out.String(), "\n"); !strings.Contains(first, `differences="`+differencesPage+`"`) {
		t.Errorf("the first line does not name the page of differences: %s", first)
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "W") || strings.HasPrefix(line, "E") || strings.Contains(line, "Feature gate") {
			t.Error(line)
		}
	}
	for _, once := range []string{`"services programmed" services=1 endpoints=3 mode=`, `"service programmed" service=`, `"configuration reloaded"`} {
		if n := strings.Count(out.String(), once); n != 1 {
			t.Errorf("%s is logged %d times:\n%s", once, n, out)
		}
	}
	if !regexp.MustCompile(`"services programmed" services=1 endpoints=3 mode="\w+" took="[0-9.]+[mµ]?s"`).MatchString(out.String()) {
		t.Errorf("the start is not summed up in one line:\n%s", out)
	}
	if n := strings.Count(out.String(), `"oom_score_adj unchanged"`); n > 1 { // at the start, not at the reload
		t.Errorf("oom_score_adj is logged %d times", n)
	}
}

// Neither does the demo, whose proxy is in another network namespace than its process.
func TestDemoIsQuiet(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	for range 3 {
		cmd, out, err := program(t.Context(), "demo")
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || strings.Contains(out.String(), "] \"") || !strings.Contains(out.String(), "after the change") {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// Whenever the demo is ended, by its own end, a signal to it or to all of a terminal's processes, it leaves no folder behind: as
// root, and as a user whose demo is in a user namespace.
func TestDemoLeavesNothing(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	dir, err := os.MkdirTemp("/tmp", "demo-") // short, and open to all: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary, err := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(dir+"/program", binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	for user, id := range map[string]int{"root": 0, "another user": 65534} {
		for _, c := range []struct {
			name, step string
			to         int // 1: the process, -1: its group; 0 for no signal
			signal     syscall.Signal
		}{
			{"at the end", "The demo leaves nothing behind", 0, 0},
			{"at once", "", 1, syscall.SIGTERM},
			{"at once, a terminal", "", -1, syscall.SIGINT},
			{"with a network", "own network namespace", 1, syscall.SIGINT},
			{"while it serves", "objects in the kernel", -1, syscall.SIGTERM},
			{"by a terminal that is closed", "objects in the kernel", -1, syscall.SIGHUP},
		} {
			t.Run(user+" "+c.name, func(t *testing.T) {
				if id != os.Geteuid() && os.Geteuid() != 0 {
					t.Skip("needs root")
				}
				tmp := filepath.Join(dir, "t")
				if err := errors.Join(os.Mkdir(tmp, 0o700), os.Chown(tmp, id, id)); err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(tmp)
				var out written
				cmd := exec.CommandContext(t.Context(), dir+"/program", "demo")
				cmd.Env, cmd.Dir = []string{"TANDEM_TEST_PROGRAM=1", "TMPDIR=" + tmp, "PATH=" + os.Getenv("PATH")}, dir
				cmd.Stdout, cmd.Stderr = &out, &out
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				left := func() []string {
					all, err := filepath.Glob(tmp + "/*")
					if err != nil {
						t.Fatal(err)
					}
					return all
				}
				for end := time.Now().Add(30 * time.Second); len(left()) == 0 && time.Now().Before(end); {
					time.Sleep(time.Millisecond)
				}
				out.await(t, c.step)
				if c.to != 0 {
					if err := syscall.Kill(c.to*cmd.Process.Pid, c.signal); err != nil {
						t.Fatal(err)
					}
				}
				err := cmd.Wait()
				if strings.Contains(out.String(), "cannot run here") {
					t.Skip(out.String())
				}
				if all := left(); len(all) > 0 {
					t.Errorf("%v: it leaves %s\n%s", err, all, out.String())
				}
				if (err == nil) != (c.to == 0) {
					t.Errorf("%v\n%s", err, out.String())
				}
			})
		}
	}
}

// Nor does it where tandems of root have what stays: a machine without one has no such folder after the demo.
func TestDemoMakesNoFolderOfRoot(t *testing.T) {
	if os.Geteuid() != 0 || netns.Available() != nil {
		t.Skip("needs root, and network namespaces")
	}
	out, err := exec.Command("unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && TANDEM_TEST_PROGRAM=1 "+os.Args[0]+" demo && ls -A /run").CombinedOutput()
	if _, rest, ok := strings.Cut(string(out), "The demo leaves nothing behind"); err != nil || !ok || strings.Contains(rest, "\ntandem") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Libraries of the API server's client do not log their feature gates with --v=2.
func TestFeatureGatesAreNotLogged(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	cmd, out := newTestNode(t).start("run", "--master", "http://127.0.0.1:1", "--hostname-override", "demo-node", "--v", "2")
	out.await(t, "connection refused") // it has read its feature gates
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil || strings.Contains(out.String(), "eature gate") {
		t.Errorf("%v\n%s", err, out)
	}
}

// --init-only fails when it could not set what was configured: the number of tracked
// flows belongs to the machine, and cannot be set in a network namespace.
func TestInitOnlyFails(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	cmd, out := newTestNode(t).start("run", "--init-only", "--hostname-override", "n", "--conntrack-max-per-core", "100000000")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailure || !strings.Contains(out.String(), "tandem: --init-only: ") {
		t.Errorf("%v\n%s", err, out)
	}
	cmd, out = newTestNode(t).start("run", "--init-only", "--hostname-override", "n", "--conntrack-max-per-core", "0")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Checks leave nothing behind: neither doctor nor cleanup, which try iptables, make
// tables of it.
func TestNoEmptyTables(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft to look with")
	}
	for _, verb := range []string{"doctor", "cleanup"} {
		out, err := inNamespace(t.TempDir(), "TANDEM_TEST_PROGRAM=1 "+os.Args[0]+" "+verb+" >&2; nft list ruleset >$XTABLES_LOCKFILE.rules; cat $XTABLES_LOCKFILE.rules >&2; test ! -s $XTABLES_LOCKFILE.rules")
		if err != nil {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
	}
}
