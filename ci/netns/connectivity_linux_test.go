// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform/connectivity"
)

// Exit codes of tandem test.
const (
	nothingBroke   = 0
	notTested      = 1
	somethingBroke = 3
)

// verb runs a verb of the program with -o json on the node of a site, or without one
// where the test is, and decodes what it prints.
func verb(t *testing.T, s *site, into any, args ...string) (code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Program(t), append(args, "-o", "json")...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	var err error
	if s == nil {
		err = cmd.Run()
	} else {
		err = s.net.Do(lab.Node, cmd.Run)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if out.Len() == 0 {
		t.Fatalf("%v: %v: %s", args, err, errOut.String())
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out.String())
	}
	return cmd.ProcessState.ExitCode()
}

// TestConnectivityInEveryMode has tandem test connectivity start a proxy of its own.
func TestConnectivityInEveryMode(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		if flavour.wrap != nil {
			t.Skip("needs the command that starts the proxy")
		}
		var r connectivity.Report
		if code := verb(t, nil, &r, "test", "connectivity", "--proxy-mode", string(mode.Name)); code != nothingBroke {
			t.Errorf("exit code %d", code)
		}
		if r.Mode != string(mode.Name) {
			t.Errorf("tested mode %s", r.Mode)
		}
		expected, kinds := map[string]int{}, map[string]int{}
		for _, row := range r.Rows {
			expected[row.Expected]++
			kinds[row.Kind]++
			if row.Verdict != connectivity.OK {
				t.Errorf("%+v", row)
			}
		}
		// Two protocols, two families, eight Services; those with an endpoint of this node have a
		// client more, and so has the one with source ranges.
		want := map[string]int{"cluster IP": 116, "external IP": 116, "load balancer IP": 116, "node port": 116, "health port": 14}
		for kind, n := range want {
			if kinds[kind] < n {
				t.Errorf("%d rows to the %s, want %d", kinds[kind], kind, n)
			}
		}
		for _, outcome := range []string{"forward", "reject", "drop", "200", "503"} {
			if expected[outcome] == 0 {
				t.Errorf("no row expects %s", outcome)
			}
		}
		t.Logf("%d rows, %d connections: %v", len(r.Rows), r.Connections, expected)
	})
}

// runningTest is a test of the tandem that runs on a site's node.
func runningTest(s *site, verb string, more ...string) []string {
	return append([]string{"test", verb, "--running", s.dir, "--ip-families", "IPv4", "--pod-ranges", "10.244.16.0/28"}, more...)
}

// TestConnectivityOfTheRunningProxy puts Services into the folder of a tandem, and finds
// what another program's rules break. The test leaves nothing behind.
func TestConnectivityOfTheRunningProxy(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2")
	s.start()
	before, folder := s.must("ip", "-br", "link"), s.folder()
	left := func(what string) {
		t.Helper()
		s.eventually(10*time.Second, "nothing is left "+what, func() error {
			if now := s.must("ip", "-br", "link"); now != before {
				return fmt.Errorf("links before:\n%s\nnow:\n%s", before, now)
			}
			return nil
		})
		if now := s.folder(); now != folder {
			t.Errorf("folder %s before, %s %s", folder, now, what)
		}
	}
	var r connectivity.Report
	if code := verb(t, s, &r, runningTest(s, "connectivity")...); code != nothingBroke || r.Differing+r.Untested > 0 || len(r.Rows) < 200 {
		t.Errorf("exit code %d, %d rows, %d differ, %d not tested", code, len(r.Rows), r.Differing, r.Untested)
	}
	left("after a test")

	s.must("nft", "add table ip firewall; add chain ip firewall forward { type filter hook forward priority -10; }; "+
		"add rule ip firewall forward ip saddr 10.244.16.10 ip daddr 10.244.16.2 udp dport 8080 drop")
	r = connectivity.Report{}
	if code := verb(t, s, &r, runningTest(s, "connectivity")...); code != somethingBroke || r.Differing == 0 {
		t.Errorf("with a rule that drops: exit code %d, %d differ", code, r.Differing)
	}
	for _, row := range r.Rows {
		if wrong := row.Verdict == connectivity.Differs; wrong && (row.From != "pod" || row.Protocol != "udp") {
			t.Errorf("the rule does not drop %+v", row)
		}
	}
	s.must("nft", "delete table ip firewall")
	left("after a test that found something")

	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd := exec.Command(s.bin, runningTest(s, "disrupt", "--for", "1m")...)
		if err := s.net.Do(lab.Node, cmd.Start); err != nil {
			t.Fatal(err)
		}
		s.eventually(30*time.Second, "links", func() error {
			if !strings.Contains(s.must("ip", "-br", "link"), "tandem-test1") {
				return errors.New("none yet")
			}
			return nil
		})
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if signal == syscall.SIGKILL { // no cleanup after a kill, which may come while the file is written
			for _, name := range []string{connectivity.Namespace + ".json", "." + connectivity.Namespace + ".part"} {
				_ = os.Remove(filepath.Join(s.dir, name))
			}
		}
		left("after " + signal.String())
	}

	r = connectivity.Report{}
	if code := verb(t, s, &r, "test", "connectivity", "--existing"); code != nothingBroke || len(r.Rows) != 2 {
		t.Errorf("--existing: exit code %d, %+v", code, r.Rows)
	}
	s.must("nft", "add table ip firewall; add chain ip firewall output { type filter hook output priority 0; }; add rule ip firewall output ip daddr 10.244.1.2 reject with tcp reset")
	if code := verb(t, s, &r, "test", "connectivity", "--existing"); code != somethingBroke {
		t.Errorf("--existing with a rule that rejects: exit code %d, %+v", code, r.Rows)
	}
}

// folder lists the folder of a site.
func (s *site) folder() string {
	s.t.Helper()
	all, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprint(all)
}

// What cannot be tested is not called right: a mode that does not work, pods that are not
// recognised.
func TestConnectivityThatCannotBeTested(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2")
	s.start()
	var r connectivity.Report
	code := verb(t, s, &r, "test", "connectivity", "--running", s.dir, "--ip-families", "IPv4") // ranges that it chooses, other than the pods'
	if code != notTested || r.Untested == 0 {
		t.Errorf("exit code %d, %d not tested, %d differ", code, r.Untested, r.Differing)
	}
	if out, err := s.run(s.bin, "test", "connectivity", "--proxy-mode", "kernelspace"); err == nil {
		t.Errorf("a mode of Windows:\n%s", out)
	}
}

// TestDisruptRestartAndSwitch restarts and switches proxies of each mode under load.
func TestDisruptRestartAndSwitch(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		if flavour.wrap != nil {
			t.Skip("needs the command that starts the proxy")
		}
		restart := []string{"test", "disrupt", "--restart", "--proxy-mode", string(mode.Name)}
		d := disrupt(t, nil, restart...)
		if len(d.Disturbances) != 1 || d.New[0].Made < 50 || d.New[1].Made < 50 {
			t.Errorf("there was no restart, or no load: %+v", d)
		}
		broken := d.Broken()
		if mode.Name == relay.Mode {
			// Its process has the connections, and datagrams are not retransmitted. New
			// connections over TCP wait for the next process, while this one waits for those.
			broken = d.New[0].Failed + d.New[0].Reset
		}
		if broken > 0 {
			t.Errorf("a restart broke %d connections: %+v", broken, d)
		}
		to := "iptables"
		if string(mode.Name) == to {
			to = "userspace"
		}
		d = disrupt(t, nil, "test", "disrupt", "--switch", to, "--proxy-mode", string(mode.Name))
		if n := d.Broken(); n > 0 || len(d.Disturbances) != 1 || d.Held[0].Held == 0 || d.Held[1].Asked < 2*d.Held[1].Held {
			t.Errorf("a switch to %s broke %d connections: %+v", to, n, d)
		}
	})
}

// TestDisruptUpgrade has another program take the place of the proxy: none breaks. One that
// does not work is a failure.
func TestDisruptUpgrade(t *testing.T) {
	needNFTables(t)
	next := filepath.Join(t.TempDir(), "next")
	if err := os.Symlink(Program(t), next); err != nil {
		t.Fatal(err)
	}
	d := disrupt(t, nil, "test", "disrupt", "--upgrade", next, "--proxy-mode", "nftables", "--for", "2s")
	if n := d.Broken(); n > 0 || len(d.Disturbances) != 1 || d.Disturbances[0].What != "upgrade to "+next || d.New[0].Made < 20 || d.Held[0].Held == 0 {
		t.Errorf("an upgrade broke %d connections: %+v", n, d)
	}
	out, err := exec.CommandContext(t.Context(), Program(t), "test", "disrupt", "--upgrade", "/bin/false", "--proxy-mode", "nftables", "--for", "2s").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "upgrade to /bin/false: ") {
		t.Errorf("a program that does not work: %v: %s", err, out)
	}
}

// disrupt runs tandem test disrupt; the exit code must show whether something broke.
func disrupt(t *testing.T, s *site, args ...string) (d connectivity.Disruption) {
	t.Helper()
	code := verb(t, s, &d, args...)
	want := nothingBroke
	if d.Broken() > 0 {
		want = somethingBroke
	}
	if code != want {
		t.Errorf("%v: exit code %d, %d broken", args, code, d.Broken())
	}
	t.Logf("%v: %+v, new %+v, held %+v", args[2:], d.Disturbances, d.New, d.Held)
	return d
}

// TestDisruptCounts stops the running proxy and flushes its rules during the test: new
// connections fail, and held ones break.
func TestDisruptCounts(t *testing.T) {
	needNFTables(t)
	s := newSite(t)
	s.flags = []string{"--proxy-mode", "nftables"}
	s.write("", "10.244.1.2")
	s.start()
	d := disrupt(t, s, runningTest(s, "disrupt", "--during",
		fmt.Sprintf("kill -STOP %d; nft flush ruleset; conntrack -F 2>/dev/null; sleep 1; kill -CONT %d; sleep 1", s.cmd.Process.Pid, s.cmd.Process.Pid))...)
	if d.New[0].Failed+d.New[0].Reset+d.New[0].Slow == 0 || d.Held[0].Broken == 0 || len(d.Failures) == 0 {
		t.Errorf("rules were flushed, and nothing broke: %+v", d)
	}
	for _, f := range d.Failures {
		if f.Second < d.Disturbances[0].Second-1 {
			t.Errorf("before the disturbance at %.1f s: %+v", d.Disturbances[0].Second, f)
		}
	}
}
