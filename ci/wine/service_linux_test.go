// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// open opens the Wine prefix for a test, or skips it.
func open(t *testing.T) *prefix {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: -short, and Wine takes a while")
	}
	return usable(t, openPrefix)
}

// usable returns the prefix that open gives, which is closed when the test ends, or
// skips it where the machine lacks what that takes.
func usable(t *testing.T, open func() (*prefix, error)) *prefix {
	t.Helper()
	p, err := open()
	if errors.Is(err, errLacking) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, p.close) })
	return p
}

// TestPackages runs the tests of packages that are for Windows alone.
func TestPackages(t *testing.T) {
	p := open(t)
	for _, c := range []struct{ pkg, tests string }{
		{"platform/service", "."}, {"windows/folders", "."}, {"windows/host", "."}, {"windows/hns", "^TestSchema$"},
	} {
		exe := filepath.Join(t.TempDir(), filepath.Base(c.pkg)+".test.exe")
		build := exec.Command("go", "test", "-c", "-o", exe, "../../"+c.pkg)
		build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", c.pkg, err, out)
		}
		out, err := p.says(exe, "-test.v", "-test.timeout=1m", "-test.run="+c.tests)
		if err != nil || !strings.Contains(out, "--- PASS") {
			t.Errorf("%s: %v\n%s", c.pkg, err, out)
		}
	}
}

// says runs a program and returns its output.
func (p *prefix) says(args ...string) (string, error) {
	out, err := finish(p.command(args...))
	return strings.ReplaceAll(string(out), "\r", ""), err
}

// path is where Linux has a file of drive C:.
func (p *prefix) path(name string) string {
	return filepath.Join(p.dir, "drive_c", strings.ReplaceAll(strings.TrimPrefix(name, `C:\`), `\`, "/"))
}

// TestService is the life of the service: installed by the program, started by
// the service manager, stopped, broken, repaired and taken away.
func TestService(t *testing.T) {
	p := open(t)
	s := newService(t, p)
	s.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.2=node-2"))

	s.refuses("nothing.yaml", "install", "--config", `C:\nothing.yaml`)
	s.refuses("set --kubeconfig to its path", "install", "--kubeconfig", `C:\nothing.conf`)
	s.refuses("not installed", "start") // none of these commands installed it
	s.does("install", s.flags()...)
	s.refuses("installed already and stopped", "install", "--manifests", `C:\`)
	s.registered()

	s.does("start")
	s.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
	s.is("RUNNING")
	s.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.3=node-1"))
	s.serves("10.96.0.10", "10.244.1.3")
	s.does("start") // a second start is harmless
	s.refuses("tandem stop and tandem start run a new version", "install", "--manifests", `C:\`)
	s.is("RUNNING")
	s.does("stop")
	s.is("STOPPED")
	s.serves("10.96.0.10", "10.244.1.3") // what is programmed stays
	if h := s.emu.Handles(); h != 0 {
		t.Errorf("%d handles are left open by a service that was stopped", h)
	}
	if log := s.logged(); !strings.Contains(log, "starting") || !strings.Contains(log, "stopped; Services stay programmed") {
		t.Errorf("log:\n%s", log)
	}

	s.does("start")
	s.is("RUNNING")
	s.does("uninstall") // stops it first
	s.refuses("not installed", "stop")
	s.serves("10.96.0.10", "10.244.1.3")
	if out, err := p.says("reg", "query", serviceKey); err == nil {
		t.Errorf("the service manager still knows it: %s", out)
	}
	s.sound()
}

// TestServiceMistakes: a service whose configuration is broken ends with the
// code of a usage error, logs the line of the error, and works again when
// it is corrected.
func TestServiceMistakes(t *testing.T) {
	p := open(t)
	s := newService(t, p)
	s.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1"))
	const right = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" +
		"metricsBindAddress: 127.0.0.1:42049\nhealthzBindAddress: 127.0.0.1:42056\nhostnameOverride: node-1\n"
	config := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(right + "mode: nonsense\nclusterCIDR: nowhere\n")
	flags := []string{"--config", windowsPath(config), "--manifests", windowsPath(s.manifests)}
	s.refuses("clusterCIDR", append([]string{"install"}, flags...)...)
	write(right + "mode: kernelspace\n")
	s.does("install", flags...)

	write(right + "mode: nonsense\nclusterCIDR: nowhere\n")
	_ = s.tandem("start") // how much of its start it survives is a matter of luck
	s.is("STOPPED")
	if out, _ := p.says("sc", "query", "tandem"); !strings.Contains(out, "SERVICE_EXIT_CODE  : 2 ") {
		t.Errorf("state in the service manager:\n%s", out)
	}
	if log := s.logged(); !strings.Contains(log, "nonsense") || !strings.Contains(log, "nowhere") {
		t.Errorf("log:\n%s", log)
	}
	write(right + "mode: kernelspace\n")
	s.does("start")
	s.serves("10.96.0.10", "10.244.1.2")
	s.does("uninstall")
}

const serviceKey = `HKLM\System\CurrentControlSet\Services\tandem`

// installed is the program in its folder, on a node.
type installed struct {
	*node
	said string // by the last command
}

// newService puts the program where it is installed, on a node of its own. The
// emulator is named in the registry: Wine gives services no environment.
func newService(t *testing.T, p *prefix) *installed {
	t.Helper()
	s := &installed{node: newNode(t, p, hnsemu.WS2025)}
	if err := p.run("reg", "add", `HKLM\SOFTWARE\HnsEmu`, "/v", "Addr", "/t", "REG_SZ", "/d", s.addr, "/f"); err != nil {
		t.Fatal(err)
	}
	// Every Windows has this key. Wine's installer removes it with the last source
	// of events in it.
	if err := p.run("reg", "add", `HKLM\System\CurrentControlSet\Services\EventLog\Application`, "/f"); err != nil {
		t.Fatal(err)
	}
	dir := p.path(`C:\Program Files\Tandem`)
	if err := errors.Join(os.MkdirAll(dir, 0o755), copyFile(filepath.Join(dir, "tandem.exe"), s.exe)); err != nil {
		t.Fatal(err)
	}
	s.exe = `C:\Program Files\Tandem\tandem.exe`
	t.Cleanup(func() {
		_ = s.tandem("uninstall") // it is gone already unless the test failed
		if t.Failed() {
			t.Logf("output of the last command:\n%s\nlog of the service:\n%s", s.said, s.logged())
		}
		os.RemoveAll(dir)
	})
	return s
}

func (s *installed) flags() []string {
	return []string{
		"--manifests", windowsPath(s.manifests), "--hostname-override", "node-1", "--proxy-mode", "kernelspace",
		"--metrics-bind-address", "", "--healthz-bind-address", "", "--log-level", "debug",
	}
}

func (s *installed) tandem(args ...string) error {
	var err error
	if s.said, err = s.prefix.says(append([]string{s.exe}, args...)...); err != nil {
		err = fmt.Errorf("tandem %v: %w: %s", args, err, s.said)
	}
	return err
}

func (s *installed) does(verb string, args ...string) {
	s.Helper()
	if err := s.tandem(append([]string{verb}, args...)...); err != nil {
		s.Fatal(err)
	}
}

// refuses checks that a command fails with a message.
func (s *installed) refuses(why string, args ...string) {
	s.Helper()
	if err := s.tandem(args...); err == nil || !strings.Contains(s.said, why) {
		s.Fatalf("tandem %v must fail with %q (%v)\n%s", args, why, err, s.said)
	}
}

// is waits until the service manager reports a state of the service.
func (s *installed) is(state string) {
	s.Helper()
	var out string
	eventually(s, "the service is "+state, func() bool {
		out, _ = s.prefix.says("sc", "query", "tandem")
		return strings.Contains(out, state)
	})
}

// registered demands that the service manager knows the service as it should:
// by a path in quotes, with the flag by which it knows itself, started with the
// system.
func (s *installed) registered() {
	s.Helper()
	out, err := s.prefix.says("reg", "query", serviceKey)
	if err != nil {
		s.Fatal(err, out)
	}
	for _, want := range []string{`"C:\Program Files\Tandem\tandem.exe" run `, "--windows-service=true", "Start    REG_DWORD    0x2"} {
		if !strings.Contains(out, want) {
			s.Errorf("the service manager's entry lacks %s:\n%s", want, out)
		}
	}
}

// logged returns the service's log.
func (s *installed) logged() string {
	text, err := os.ReadFile(s.prefix.path(`C:\ProgramData\Tandem\logs\tandem.log`))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// TestFinish runs a program that leaves another behind, which keeps its output open.
func TestFinish(t *testing.T) {
	p := open(t)
	begin := time.Now()
	out, err := p.says("cmd", "/c", "start /b ping -n 600 127.0.0.1 & echo last")
	if err != nil || !strings.Contains(out, "last") {
		t.Errorf("%v: %q", err, out)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("waited %s for a program that was left behind", took)
	}
}
