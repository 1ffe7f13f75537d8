// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Machine is a machine that runs.
type Machine struct {
	t      testing.TB
	shell  *exec.Cmd // unshare, whose end is the machine's
	pid    string    // of its first process, as seen from here
	cgroup string
	said   bytes.Buffer
}

// Boot starts a machine for a test, and ends it with the test. Where that is not
// possible the test is skipped. The scripts are those of this folder, whose path
// relative to the test's is given.
func Boot(t testing.TB, scripts string) *Machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a machine with systemd takes root")
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		t.Skipf("no Debian can be unpacked here: %v", err)
	}
	scripts, err := filepath.Abs(scripts)
	if err != nil {
		t.Fatal(err)
	}
	root, err := unpack(t.Context(), filepath.Join(scripts, "root"))
	if err != nil {
		t.Skip(err)
	}
	m := &Machine{t: t, cgroup: fmt.Sprintf("tandem-test-%d-%d", os.Getpid(), time.Now().UnixNano())}
	m.shell = exec.Command("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", filepath.Join(scripts, "boot"))
	m.shell.Env = append(os.Environ(), "LOWER="+root, "CGROUP="+m.cgroup, "WORK="+t.TempDir())
	m.shell.Stdout, m.shell.Stderr = &m.said, &m.said
	m.shell.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	if err := m.wait(); err != nil {
		t.Fatalf("the machine does not boot: %v\n%s", err, m.said.String())
	}
	return m
}

// unpack returns the cached root.
func unpack(ctx context.Context, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, script)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		text := said.Bytes()
		return "", fmt.Errorf("no Debian could be unpacked: %w: %s", err, text[max(0, len(text)-500):])
	}
	return strings.TrimSpace(string(out)), nil
}

// wait waits until the machine is up.
func (m *Machine) wait() error {
	var last error
	for range 300 {
		time.Sleep(100 * time.Millisecond)
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.shell.Process.Pid, m.shell.Process.Pid))
		if err != nil {
			return err
		}
		if m.pid = strings.TrimSpace(string(children)); m.pid == "" {
			continue
		}
		if comm, err := os.ReadFile("/proc/" + m.pid + "/comm"); err != nil || string(comm) != "systemd\n" {
			continue
		}
		if last = m.command("systemctl", "is-system-running").Run(); last == nil {
			return nil
		}
	}
	return errors.Join(errors.New("not within half a minute"), last)
}

func (m *Machine) command(args ...string) *exec.Cmd {
	return exec.CommandContext(m.t.Context(), "nsenter", append([]string{"--target", m.pid, "--all", "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}, args...)...)
}

// Try runs a command in the machine and returns its output.
func (m *Machine) Try(args ...string) (string, error) {
	out, err := m.command(args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Do runs a command in the machine that must succeed, and returns its output.
func (m *Machine) Do(args ...string) string {
	m.t.Helper()
	out, err := m.Try(args...)
	if err != nil {
		m.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// Write writes a file of the machine.
func (m *Machine) Write(path, text string, mode os.FileMode) {
	m.t.Helper()
	path = filepath.Join("/proc", m.pid, "root", path)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), mode)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// Copy copies a file into the machine.
func (m *Machine) Copy(from, to string, mode os.FileMode) {
	m.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		m.t.Fatal(err)
	}
	m.Write(to, string(b), mode)
}

// Property returns a property of a unit, as `systemctl show` has it.
func (m *Machine) Property(unit, name string) string {
	m.t.Helper()
	return m.Do("systemctl", "show", unit, "--value", "--property", name)
}

// Until waits for a property to be as wanted, and returns its value.
func (m *Machine) Until(unit, name string, want func(string) bool) string {
	m.t.Helper()
	value := ""
	for range 300 {
		if value = m.Property(unit, name); want(value) {
			return value
		}
		time.Sleep(100 * time.Millisecond)
	}
	m.t.Fatalf("%s of %s is still %q after half a minute\n%s", name, unit, value, m.Do("journalctl", "--no-pager", "-n", "40"))
	return ""
}

// close ends the machine and removes its control groups.
func (m *Machine) close() {
	_ = m.shell.Process.Kill() // its child ends with it
	_ = m.shell.Wait()
	if err := m.forget(); err != nil {
		m.t.Errorf("the machine's control groups: %v", err)
	}
}

// forget removes the control groups, children first.
func (m *Machine) forget() error {
	top, err := hierarchy()
	if err != nil {
		return err
	}
	var dirs []string
	_ = filepath.WalkDir(filepath.Join(top, m.cgroup), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append([]string{path}, dirs...)
		}
		return nil
	})
	for try := range 50 {
		left := dirs
		for len(left) > 0 && os.Remove(left[0]) == nil {
			left = left[1:]
		}
		if dirs = left; len(dirs) == 0 {
			return nil
		}
		time.Sleep(time.Duration(try) * 10 * time.Millisecond) // its processes are ending
	}
	return fmt.Errorf("%s is still in use", dirs[0])
}

// hierarchy returns where this machine has its unified hierarchy mounted.
func hierarchy() (string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("no cgroup2 is mounted")
}
