// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestReplay replays a snapshot of each mode of both systems with the Windows program: the plan
// is that of the Linux program, byte for byte, and so is what other verbs say of it. A
// snapshot that the Windows program takes is replayed on Linux.
func TestReplay(t *testing.T) {
	p := open(t)
	n := newNode(t, p, hnsemu.WS2025)
	linux := filepath.Join(t.TempDir(), "tandem")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", linux, "../../cmd/tandem").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	here := func(args ...string) []byte {
		t.Helper()
		out, err := exec.Command(linux, args...).Output()
		if err != nil {
			t.Fatalf("tandem %s: %v", strings.Join(args, " "), err)
		}
		return out
	}
	there := func(args ...string) []byte {
		t.Helper()
		c := p.command(append([]string{n.exe}, args...)...)
		var said bytes.Buffer
		c.Stderr = &said
		out, err := finish(c)
		if err != nil {
			t.Fatalf("tandem.exe %s: %v\n%s", strings.Join(args, " "), err, said.Bytes())
		}
		return out
	}
	snapshots, err := filepath.Glob("../../platform/testdata/*.snapshot")
	if err != nil || len(snapshots) < 5 {
		t.Fatal(snapshots, err)
	}
	for _, path := range snapshots {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		want, got := here("replay", path, "-o", "native"), there("replay", windowsPath(path), "-o", "native")
		if len(want) < 1000 || !bytes.Equal(want, got) {
			t.Errorf("%s: %d bytes on Linux, %d on Windows: another plan", filepath.Base(path), len(want), len(got))
		}
		t.Logf("%s: %d bytes", filepath.Base(path), len(got))
		want, got = here("explain", "host", "10.96.0.11:80", "--snapshot", path, "-o", "json"), there("explain", "host", "10.96.0.11:80", "--snapshot", windowsPath(path), "-o", "json")
		if !bytes.Equal(want, got) {
			t.Errorf("%s: explain: on Linux\n%s\non Windows\n%s", filepath.Base(path), want, got)
		}
	}

	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.2=node-2"))
	n.start()
	n.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
	eventually(t, "everything is programmed", func() bool { return strings.Contains(n.log.String(), "services programmed") })
	n.firstClient()
	taken := filepath.Join(t.TempDir(), "node.snapshot")
	if err := os.WriteFile(taken, there("snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if want, got := there("replay", windowsPath(taken), "-o", "native"), here("replay", taken, "-o", "native"); !bytes.Equal(want, got) || !bytes.Contains(got, []byte("10.96.0.10")) {
		t.Errorf("a snapshot of Windows is planned there as\n%s\nand on Linux as\n%s", want, got)
	}
	n.stop((*os.Process).Kill)
}

// TestRecordHNS records what the Windows program asks HNS, through its DLLs, while Services
// change: in Go the emulator answers all of it alike.
func TestRecordHNS(t *testing.T) {
	p := open(t)
	for _, v := range []hns.Version{hnsemu.WS2019, hnsemu.WS2025} {
		n := newNode(t, p, v)
		file := filepath.Join(t.TempDir(), "hns.jsonl")
		n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.2=node-2"))
		n.startAs(n.tandem("run", "--metrics-bind-address", "", "--record-hns", windowsPath(file)))
		n.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.3=node-1", "10.244.2.2=node-2", "10.244.2.9=node-2"))
		n.serves("10.96.0.10", "10.244.1.3 10.244.2.2 10.244.2.9")
		n.remove("web.yaml")
		n.serves("10.96.0.10", "")
		n.stop(func(p *os.Process) error { return p.Signal(os.Interrupt) })
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		calls, err := hnsemu.ReadRecording(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for _, secret := range []string{"10.244.1.2", "10.244.1.3", "10.244.2.2", "10.244.2.9", "10.96.0.10", "cbr0"} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s is in the recording:\n%s", secret, text)
			}
		}
		writes := 0
		for _, c := range calls {
			if c.Request != nil || strings.HasPrefix(c.Name, "Delete") {
				writes++
			}
		}
		differences, err := hnsemu.Replay(calls)
		if err != nil || len(differences) > 0 || writes < 5 {
			t.Errorf("%v, %d writes, %q\n%s", err, writes, differences, text)
		}
		fmt.Printf("recording: HNS %s under Wine: %d calls, %d of them writes, %d differ in Go\n", v, len(calls), writes, len(differences))
	}
}

// firstClient connects to the control pipe of a proxy that has just started. Wine lets a client
// connect to the pipe's first instance, which go-winio opens without access so that
// Windows keeps it disconnected: nobody answers there, and nobody else gets it.
func (n *node) firstClient() {
	n.Helper()
	c := n.prefix.command(n.exe, "history")
	if err := c.Start(); err != nil {
		n.Fatal(err)
	}
	end := time.AfterFunc(20*time.Second, func() { _ = c.Process.Kill() })
	defer end.Stop()
	_ = c.Wait() // it hangs, or does not, as Wine has it
}
