// SPDX-License-Identifier: Apache-2.0

// Package guest is what the tests of the AppArmor profile and of the SELinux policy share. They change the machine
// that they are on, and so run in a guest alone: ci/guest/run compiles what they load, and boots it.
package guest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Program is where packages have tandem, and Services is the folder of manifests that its unit follows.
const (
	Program  = "/usr/bin/tandem"
	Services = "/etc/tandem/services"
)

// Install puts the program of $TANDEM_TEST_BIN and manifests where packages have them, and returns the values of more
// variables. Where one is not set, or this is no guest, the test is skipped.
func Install(t *testing.T, variables ...string) (values []string) {
	t.Helper()
	for _, name := range append(variables, "TANDEM_TEST_BIN") {
		value := os.Getenv(name)
		if value == "" {
			t.Skip("changes the machine it is on: ci/guest/run has it run in a guest")
		}
		values = append(values, value)
	}
	var root unix.Statfs_t
	if err := unix.Statfs("/", &root); err != nil || root.Type != unix.RAMFS_MAGIC && root.Type != unix.TMPFS_MAGIC {
		t.Skipf("this is no guest: its root is a file system of type %#x, %v", root.Type, err)
	}
	Copy(t, values[len(variables)], Program, 0o755)
	if err := os.MkdirAll("/var/lib/tandem", 0o755); err != nil {
		t.Fatal(err)
	}
	Copy(t, "../../ci/manifests/nginx.yaml", Services+"/nginx.yaml", 0o644)
	return values[:len(variables)]
}

// Copy copies a file, and makes its folder.
func Copy(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, mode))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Bound leaves programs that this thread starts the capabilities of the unit with its drop-in for iptables.
func Bound() error {
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if c == unix.CAP_NET_ADMIN || c == unix.CAP_NET_RAW {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) { // a kernel without it
			return err
		}
	}
	return nil
}

// Profile confines tandem.
type Profile struct {
	Label   string                                       // how that of a process in it begins
	Words   []string                                     // of the kernel's line about what it denies
	Command func(t *testing.T, args ...string) *exec.Cmd // of tandem in it
}

// Modes are those that a profile allows.
func Modes() []string { return []string{"nftables", "iptables", "ipvs", "userspace"} }

// Denied returns what the kernel said since the last call that the profile does not allow.
func (p Profile) Denied(t *testing.T) string {
	t.Helper()
	const readAndClear = 4 // syslog(2)
	log := make([]byte, 1<<20)
	n, err := unix.Klogctl(readAndClear, log)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for line := range strings.Lines(string(log[:n])) {
		denied := true
		for _, word := range p.Words {
			denied = denied && strings.Contains(line, word)
		}
		if denied {
			all.WriteString(line)
		}
	}
	return all.String()
}

// Serves runs tandem in a mode and cleans up after it. Both must work, and nothing of them be denied.
func (p Profile) Serves(t *testing.T, mode string) {
	t.Helper()
	proxy := p.Command(t, "run", "--manifests="+Services, "--hostname-override=node-1", "--proxy-mode="+mode)
	var said strings.Builder
	proxy.Stdout, proxy.Stderr = &said, &said
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- proxy.Wait() }()
	served := ""
	for range 100 {
		out, err := exec.CommandContext(t.Context(), Program, "status").CombinedOutput()
		if served = string(out); err == nil && strings.Contains(served, "nginx") && strings.Contains(served, "mode "+mode) {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	label, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(proxy.Process.Pid), "attr/current"))
	if err != nil || !strings.HasPrefix(string(label), p.Label) {
		t.Errorf("the proxy is not confined: %s, %v", label, err)
	}
	if err := proxy.Process.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	<-ended
	if !strings.Contains(served, "mode "+mode) {
		t.Errorf("serves nothing: %s\n%s", served, said.String())
	}
	if all := p.Denied(t); all != "" {
		t.Errorf("denied:\n%s", all)
	}
	if out, err := p.Command(t, "cleanup").CombinedOutput(); err != nil {
		t.Errorf("cleanup: %v: %s", err, out)
	}
	if all := p.Denied(t); all != "" {
		t.Errorf("cleanup is denied:\n%s", all)
	}
}
