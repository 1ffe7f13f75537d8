// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// hostNamespace is where the test binary was started. Nothing here may ever
// write to it.
var hostNamespace = threadNamespaceName()

func threadNamespaceName() string {
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return "unknown"
	}
	return link
}

// eachVariant runs a test in a network namespace of its own for each variant
// that is installed. Subtests have threads of their own: f must not start any.
func eachVariant(t *testing.T, f func(t *testing.T, k *kernel)) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	found, err := xtables.FindTools(t.Context())
	if err != nil {
		t.Skip(err)
	}
	for _, tools := range found {
		t.Run(string(tools.Variant), func(t *testing.T) {
			k := &kernel{t: t, tools: tools}
			k.enter()
			c := &xtables.Commands{Tools: tools}
			if err := c.Try(t.Context(), model.IPv4, probeRules, xtables.Filter, xtables.NAT); err != nil {
				t.Skip(err)
			}
			f(t, k)
		})
	}
}

// kernel is a fresh network namespace.
type kernel struct {
	t     testing.TB
	tools xtables.Tools
}

// enter puts the test's thread, which is never given back, into the namespace.
func (k *kernel) enter() {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		k.t.Skipf("cannot make a network namespace: %v", err)
	}
	if now := threadNamespaceName(); now == "unknown" || now == hostNamespace {
		k.t.Fatalf("still in the host's network namespace (%s)", now)
	}
}

func (k *kernel) driver() *Driver {
	k.t.Helper()
	d, err := open(k.tools, k.tools.Installed(), 0)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = d.Close() })
	return d
}

// restore makes an external change.
func (k *kernel) restore(f model.Family, text string) {
	k.t.Helper()
	if err := k.tools.Restore(k.t.Context(), f, []byte(text)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) command(args ...string) {
	k.t.Helper()
	cmd := exec.Command(k.tools.Paths[model.IPv4].Command, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		k.t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// save returns all rules, without comments and counters.
func (k *kernel) save() string {
	k.t.Helper()
	var b bytes.Buffer
	for _, f := range k.tools.Installed() {
		text, err := k.tools.Save(k.t.Context(), f, xtables.Filter, xtables.NAT)
		if err != nil {
			k.t.Fatal(err)
		}
		for l := range strings.Lines(text) {
			if !strings.HasPrefix(l, "#") {
				chain, _, _ := strings.Cut(l, " [")
				b.WriteString(strings.TrimSuffix(chain, "\n") + "\n")
			}
		}
	}
	return b.String()
}

// site is a backend with a random world in it.
type site struct {
	*kernel
	driver  *Driver
	backend dataplane.Backend
	world   conformance.Random
}

func (k *kernel) site(seed uint64) *site {
	k.t.Helper()
	s := &site{kernel: k, driver: k.driver(), world: conformance.RandomWorld(conformance.NewRand(seed))}
	s.backend = dataplane.New(NewCompiler(Options{}), s.driver)
	return s
}

// start adopts installed objects, programs the world and returns what was written.
func (s *site) start() dataplane.Work {
	s.t.Helper()
	if err := s.backend.Adopt(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.backend.SetHost(s.world.Host)
	var deltas []model.Delta
	for _, p := range s.world.Ports() {
		deltas = append(deltas, model.Delta{New: p})
	}
	s.backend.Update(deltas)
	return s.sync()
}

func (s *site) sync() dataplane.Work {
	s.t.Helper()
	work, err := s.backend.Sync(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return work
}
