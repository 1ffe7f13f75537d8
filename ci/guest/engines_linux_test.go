// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// With this variable the test's program is the command, on this machine and in a guest.
const asCommand = "TANDEM_GUEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// command calls the command with TANDEM_GUEST. Its temporary files are in a folder of
// their own, by which its processes are known, too.
func command(t *testing.T, engine string, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	cmd = exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "TANDEM_GUEST="+engine, "TMPDIR="+dir)
	cmd.Stderr = new(bytes.Buffer)
	return cmd, dir
}

// probe returns what an engine is called, or skips the test where it does not work.
func probe(t *testing.T, engine string) string {
	t.Helper()
	cmd, _ := command(t, engine, "-probe")
	out, err := cmd.Output()
	if err == nil {
		return strings.TrimSpace(string(out))
	}
	reason := cmd.Stderr.(*bytes.Buffer).String()
	if first := map[string]string{"qemu": "QEMU", "uml": "UML", "auto": "UML"}[engine]; !strings.HasPrefix(reason, "guest: "+first+": ") {
		t.Fatalf("%v without a reason: %q", err, reason)
	}
	t.Skip(strings.TrimSpace(reason))
	return ""
}

// expectNothingLeft fails when a process or a file of a command that has ended is there.
func expectNothingLeft(t *testing.T, dir string) {
	t.Helper()
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("files are left: %v, %v", files, err)
	}
	for _, pid := range processes(t, dir) {
		t.Errorf("process %s is left", pid)
	}
}

// processes returns the processes whose arguments have a text.
func processes(t *testing.T, text string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(text)) { // else it has ended
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// TANDEM_GUEST chooses the engine. A program runs on the kernel that the probe names, its output
// and its exit code come back, and nothing of the guest stays.
func TestForcedEngines(t *testing.T) {
	for engine, kernel := range map[string]string{"qemu": " with Linux ", "uml": "user-mode Linux"} {
		t.Run(engine, func(t *testing.T) {
			name := probe(t, engine)
			begin := time.Now()
			cmd, dir := command(t, engine, "sh", "-c", "uname -r; exit 7")
			out, err := cmd.Output()
			if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 7 {
				t.Fatalf("%v, want exit code 7: %s", err, cmd.Stderr)
			}
			got := strings.TrimSpace(string(out))
			_, want, named := strings.Cut(name, kernel)
			if !named || want != "" && got != want || want == "" && !strings.HasPrefix(got, "6.1.") {
				t.Errorf("%s ran %q", name, got)
			}
			expectNothingLeft(t, dir)
			t.Logf("%s: boot, program and end in %.0f s", name, time.Since(begin).Seconds())
		})
	}
}

// UML, the faster one, is taken where it runs, unless a kernel or modules are asked for.
func TestChosenEngine(t *testing.T) {
	uml, qemu := probe(t, "uml"), probe(t, "qemu")
	for _, c := range []struct{ args, want string }{
		{"-probe", uml},
		{"-probe -append quiet", uml},
		{"-probe -kernel 6.12", qemu},
		{"-probe -without nf_tables", qemu},
	} {
		cmd, _ := command(t, "", strings.Fields(c.args)...)
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
			t.Errorf("guest %s: %q, %v, want %s", c.args, got, err, c.want)
		}
	}
}

// UML runs where the CPU has no more registers than it can save, such as the one that QEMU
// emulates: there the probe chooses it, and it has IPVS.
func TestUMLOnCPUWithoutAMX(t *testing.T) {
	if name := probe(t, "qemu"); strings.Contains(name, "(KVM)") {
		t.Skipf("%s has the registers of this machine's CPU", name)
	}
	linux, err := exec.LookPath("linux.uml")
	if err != nil {
		t.Skip("UML is not installed (Debian: apt-get install user-mode-linux)")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	const modules = "/usr/lib/uml/modules/*/"
	cmd, dir := command(t, "qemu", "-with", linux+","+modules+"modules.*,"+modules+"kernel/net,"+modules+"kernel/lib",
		"env", "TANDEM_GUEST=uml", "TMPDIR=/tmp", self, "-memory", "256", "sh", "-c",
		"uname -r && ipvsadm -A -t 10.96.0.10:80 -s rr && ipvsadm -a -t 10.96.0.10:80 -r 10.244.1.2:8080 -m && ipvsadm -S -n")
	out, err := cmd.Output()
	want := "-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 1\n"
	if kernel, rest, _ := strings.Cut(string(out), "\n"); err != nil || !strings.HasPrefix(kernel, "6.1.") || rest != want {
		t.Errorf("%v: %s\n%s\nwant Linux 6.1 and\n%s", err, out, cmd.Stderr, want)
	}
	expectNothingLeft(t, dir)
	t.Logf("UML in QEMU: %.0f s", time.Since(begin).Seconds())
}

// A guest that is told to end leaves nothing, and one that is killed no process.
func TestStoppedGuest(t *testing.T) {
	probe(t, "auto")
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		cmd, dir := command(t, "auto", "sh", "-c", "echo ready; sleep 100000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Errorf("%q, %v", line, err)
		}
		if len(processes(t, dir)) == 0 {
			t.Error("the guest's process is not found, so that this test would see nothing")
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Errorf("success after %v", signal)
		}
		for len(processes(t, dir)) > 0 && signal == syscall.SIGKILL && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond) // the kernel is ending it
		}
		if signal == syscall.SIGTERM {
			expectNothingLeft(t, dir)
		}
	}
}

// `make guest` with an engine that this CPU cannot run says so and succeeds.
func TestSkippedWithReason(t *testing.T) {
	if _, err := findUML(t.Context(), &guest{}); err == nil {
		t.Skip("UML runs here")
	}
	cmd := exec.CommandContext(t.Context(), "./run")
	cmd.Env = append(os.Environ(), "TANDEM_GUEST=uml")
	out, err := cmd.CombinedOutput()
	if want := "guest: skipped: no guest can be booted here:\nguest: UML: "; err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%v: %s\nwant %s", err, out, want)
	}
}

// All guests of this machine together have memoryLimit, with what their engines take.
func TestMemoryOfAllGuests(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if _, err := take(t.Context(), memoryLimit+1); err == nil {
		t.Error("one guest got more than all may have")
	}
	release, err := take(t.Context(), memoryLimit-1536)
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel() // it would wait
	if _, err := take(over, 1537); !errors.Is(err, context.Canceled) {
		t.Errorf("a guest that exceeds what is left: %v", err)
	}
	release()
	if release, err = take(over, 1537); err != nil {
		t.Errorf("after the first one has ended: %v", err)
	} else {
		release()
	}
}
