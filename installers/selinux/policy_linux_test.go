// SPDX-License-Identifier: Apache-2.0

package selinux

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/installers/test/guest"
)

const (
	starter = "/usr/bin/starts" // this test in systemd's place
	selinux = "/sys/fs/selinux"

	config    = "/etc/tandem/config.yaml"
	elsewhere = "/root/config.yaml"
	others    = "/usr/bin/others" // has another program under the name of one that it runs
)

// loaded loads the policy, which ci/guest/run compiled, puts the program where packages have it,
// labels what is run and read, and has the policy enforced.
func loaded(t *testing.T) guest.Profile {
	t.Helper()
	compiled := guest.Install(t, "TANDEM_SELINUX_POLICY", "TANDEM_SELINUX_LABELS")
	if err := unix.Mount("selinuxfs", selinux, "selinuxfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Skipf("a kernel without SELinux: %v", err)
	}
	text, err := os.ReadFile(compiled[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(selinux+"/load", text, 0); err != nil {
		t.Fatalf("the kernel does not take the policy: %v", err)
	}
	guest.Copy(t, "/proc/self/exe", starter, 0o755)
	if err := os.MkdirAll("/run/tandem", 0o755); err != nil { // which is labelled
		t.Fatal(err)
	}
	for _, path := range []string{config, elsewhere} {
		if err := os.WriteFile(path, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	guest.Copy(t, guest.Program, others+"/iptables", 0o755)
	label(t, compiled[1])
	if err := os.WriteFile("/proc/sys/kernel/printk_ratelimit", []byte("0"), 0); err != nil { // every denied access is logged
		t.Fatal(err)
	}
	if err := os.WriteFile(selinux+"/enforce", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	return guest.Profile{Label: "system_u:system_r:tandem_t:s0", Words: []string{"avc:  denied", ":tandem_"}, Command: confined}
}

// label gives files the labels of the policy, as restorecon does: the last line that matches a path decides.
func label(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]fs.FileMode{"--": 0, "-d": fs.ModeDir, "-l": fs.ModeSymlink, "-s": fs.ModeSocket, "-c": fs.ModeDevice | fs.ModeCharDevice}
	type rule struct {
		stem    string // how paths begin
		path    *regexp.Regexp
		kind    fs.FileMode
		any     bool
		context string
	}
	var rules []rule
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		r := rule{any: len(f) == 2, context: f[len(f)-1]}
		if kind, known := kinds[f[1]]; known {
			r.kind = kind
		} else if !r.any {
			continue // a pipe or a block device
		}
		r.stem = f[0]
		if i := strings.IndexAny(f[0], `.^$?*+|[({\`); i >= 0 {
			r.stem = f[0][:max(0, i-1)]
		}
		used := false
		for _, dir := range []string{"/etc", "/usr", "/lib", "/bin", "/sbin", "/run", "/var/lib/tandem", "/root", "/dev"} {
			used = used || strings.HasPrefix(r.stem, dir) || strings.HasPrefix(dir, r.stem)
		}
		if !used {
			continue
		}
		if r.path, err = regexp.Compile("^(?:" + f[0] + ")$"); err != nil {
			t.Logf("no label by %s: %v", f[0], err)
			continue
		}
		rules = append(rules, r)
	}
	merged := regexp.MustCompile(`^/(bin|sbin|lib|lib64)(/|$)`)
	set := func(file string, mode fs.FileMode) {
		context, path := "", merged.ReplaceAllString(file, "/usr/$1$2") // as file_contexts.subs_dist has it
		for _, r := range rules {
			if strings.HasPrefix(path, r.stem) && (r.any || r.kind == mode.Type()) && r.path.MatchString(path) {
				context = r.context
			}
		}
		if path == starter {
			context = "system_u:object_r:init_exec_t:s0"
		}
		if context == "" || context == "<<none>>" {
			return
		}
		if err := unix.Lsetxattr(file, "security.selinux", []byte(context+"\x00"), 0); err != nil {
			t.Fatalf("%s: %s: %v", file, context, err)
		}
	}
	for _, dir := range []string{"/etc", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/bin", "/sbin", "/run", "/var", "/root", "/dev"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil {
				set(path, d.Type())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestMain is also what stands in systemd's place: a program of the domain of init, which gives up what
// the unit does and starts the one that its arguments name.
func TestMain(m *testing.M) {
	if os.Args[0] != starter {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Args[1] == "unit" {
		if err := errors.Join(guest.Bound(), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Fprintln(os.Stderr, os.Args[2], unix.Exec(os.Args[2], os.Args[2:], os.Environ()))
	os.Exit(1)
}

// confined is a command of the program as systemd starts that of the unit; full is one with all capabilities.
func confined(t *testing.T, args ...string) *exec.Cmd { return started(t, "unit", args) }
func full(t *testing.T, args ...string) *exec.Cmd     { return started(t, "full", args) }

func started(t *testing.T, rights string, args []string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), starter, append([]string{rights, guest.Program}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	return cmd
}

func TestPolicy(t *testing.T) {
	policy := loaded(t)
	policy.Denied(t) // of before
	for _, mode := range guest.Modes() {
		t.Run(mode, func(t *testing.T) {
			if out, err := full(t, "run", "--init-only", "--proxy-mode="+mode).CombinedOutput(); err != nil {
				t.Errorf("--init-only: %v: %s", err, out)
			}
			policy.Serves(t, mode)
		})
	}
	t.Run("API server", func(t *testing.T) {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		proxy := confined(t, "run", "--master=http://"+server.Addr().String(), "--hostname-override=node-1", "--proxy-mode=nftables")
		if err := proxy.Start(); err != nil {
			t.Fatal(err)
		}
		if err := server.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		asks, err := server.Accept()
		if err != nil {
			t.Errorf("does not reach it: %v", err)
		} else {
			_ = asks.Close()
		}
		_ = server.Close()
		_ = proxy.Process.Kill()
		_ = proxy.Wait()
		if all := policy.Denied(t); all != "" {
			t.Errorf("denied:\n%s", all)
		}
	})
	t.Run("what is left out", func(t *testing.T) {
		for path, allowed := range map[string]bool{config: true, elsewhere: false} {
			out, err := confined(t, "config", "check", path).CombinedOutput()
			if (err == nil) != allowed || !allowed && !strings.Contains(string(out), "ermission denied") {
				t.Errorf("reads %s: %v: %s", path, err, out)
			}
		}
		runs := confined(t, "cleanup")
		runs.Env = []string{"PATH=" + others + ":/usr/sbin:/usr/bin"}
		out, _ := runs.CombinedOutput() // what it finds to remove is not what is asked here
		all := policy.Denied(t)
		if !strings.Contains(all, `name="root"`) || !strings.Contains(all, `path="`+others+`/iptables"`) {
			t.Errorf("the kernel does not say what it denied:\n%s\n%s", all, out)
		}
	})
}
