// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// A running tandem serves its history; a snapshot of it has the same status and history,
// and is planned alike without it, redacted, too.
func TestHistoryAndSnapshotOfARunningTandem(t *testing.T) {
	node := newTestNode(t)
	dir := folder(t, map[string]string{
		"web.yaml":  webYAML,
		"node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n",
	})
	node.serve("--manifests", dir, "--proxy-mode", "nftables", "--count-connections")

	changed := strings.Replace(webYAML, "10.244.1.3", "10.244.1.4", 1)
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	var past history.Document
	for end := time.Now().Add(30 * time.Second); len(past.Entries) == 0 || past.Entries[0].Sync == nil; time.Sleep(50 * time.Millisecond) {
		code, out := node.ask("history", "default/web", "-o", "json")
		if code != exitOK || time.Now().After(end) {
			t.Fatalf("history: exit code %d\n%s", code, out)
		}
		past = history.Document{}
		if err := json.Unmarshal([]byte(out), &past); err != nil {
			t.Fatal(err)
		}
	}
	if e := past.Entries[0]; e.Kind != "EndpointSlice" || e.Verb != "changed" || e.Detail != "endpoint 10.244.1.4 added, endpoint 10.244.1.3 deleted" || e.Sync.Created+e.Sync.Replaced == 0 || e.Sync.Stages.Write <= 0 {
		t.Errorf("%+v %+v", e, e.Sync)
	}
	if _, out := node.ask("history"); !strings.Contains(out, "InitialList") || !strings.Contains(out, "default/web-1") || !strings.Contains(out, "endpoint 10.244.1.4 added") {
		t.Error(out)
	}

	plain, redacted, bundle := filepath.Join(dir, "plain"), filepath.Join(dir, "redacted"), filepath.Join(t.TempDir(), "bundle")
	for path, args := range map[string][]string{plain: {"snapshot"}, redacted: {"snapshot", "--redact"}} {
		code, out := node.ask(args...)
		if code != exitOK {
			t.Fatalf("%v: %s", args, out)
		}
		if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if text, _ := os.ReadFile(redacted); strings.Contains(string(text), "10.244.1.2") || strings.Contains(string(text), "web") || strings.Contains(string(text), dir) {
		t.Errorf("names or addresses are left in\n%s", text)
	}
	for _, path := range []string{plain, redacted} { // in no namespace of the node
		code, out, stderr := tandem(t, "replay", path)
		if code != exitOK || !strings.Contains(out, "plan: 1 Service, ") {
			t.Errorf("replay: exit code %d\n%s%s", code, out, stderr)
		}
	}
	everyVerbReads(t, plain)
	tracesAsItWas(node, filepath.Join(t.TempDir(), "damaged"), func() error {
		return node.Do(netns.Node, func() error {
			return exec.CommandContext(t.Context(), "nft", "flush", "map", "ip", "tandem", "slots").Run()
		})
	})

	node.connect("10.96.0.10:80") // only the first packet counts
	var top question.Top
	if code, out := node.ask("top", "-o", "json", "--interval", "100ms"); code != exitOK || json.Unmarshal([]byte(out), &top) != nil || len(top.Services) != 1 || top.Services[0].Service != "default/web" {
		t.Errorf("top: exit code %d\n%s", code, out)
	}

	code, out := node.ask("doctor", "--proxy-mode", "nftables", "--bundle", bundle, "-o", "json")
	var checks struct{ Items []diagnosis.Check }
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&checks); err != nil || len(checks.Items) < 30 {
		t.Fatalf("doctor: exit code %d, %d checks (%v)\n%s", code, len(checks.Items), err, out)
	}
	if code, out, stderr := tandem(t, "replay", bundle); code != exitOK {
		t.Errorf("replay of the bundle: %s%s", out, stderr)
	}
}

// everyVerbReads asks a snapshot of the running tandem with each verb that shows something, as
// a table and as JSON.
func everyVerbReads(t *testing.T, path string) {
	t.Helper()
	asked := map[string]bool{"ui": true} // TestUIOfASnapshot serves it
	for _, c := range []struct {
		want string // in both forms
		args []string
	}{
		{"10.244.1.4:8080", []string{"explain", "pod", "default/web:80"}},
		{"10.244.1.4:8080", []string{"trace", "pod", "default/web:80"}},
		{"10.244.1.4:8080", []string{"services", "default/web"}},
		{"default/web", []string{"services", "-n", "default", "--state", "programmed"}},
		{"default/web", []string{"status"}},
		{"EndpointSlice", []string{"history", "default/web"}},
		{"", []string{"top"}},
		{"nftables", []string{"drift"}},
		{"default/web", []string{"plan"}},
	} {
		asked[c.args[0]] = true
		for _, form := range []string{"table", "json", "yaml"} {
			args := append(slices.Clone(c.args), "--snapshot", path)
			if form != "table" {
				args = append(args, "-o", form)
			}
			code, out, stderr := tandem(t, args...)
			if code != exitOK || !strings.Contains(out, c.want) {
				t.Errorf("%v: exit code %d\n%s%s", args, code, out, stderr)
			}
			var indented bytes.Buffer
			if form == "json" && (json.Indent(&indented, []byte(out), "", "  ") != nil || indented.String() != out) {
				t.Errorf("%v: not indented by two spaces:\n%s", args, out)
			}
		}
	}
	for _, c := range newRoot().Commands() {
		if c.Flags().Lookup("snapshot") != nil && !asked[c.Name()] {
			t.Errorf("%s --snapshot was not tried", c.Name())
		}
	}
	if _, out, _ := tandem(t, "plan", "--snapshot", path, "-o", "native"); !strings.Contains(out, "10.244.1.4") {
		t.Error(out)
	}
}

// tracesAsItWas damages the data plane, and follows a connection through it later, elsewhere,
// and after it was repaired.
func tracesAsItWas(t testNode, path string, damage func() error) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Logf("a damaged data plane is not traced: %v", err)
		return
	}
	for end := time.Now().Add(time.Minute); ; { // a repair may come right before the look
		taken, damaged := make(chan struct{}), make(chan error, 1)
		go func() { // again and again: a repair is there before a snapshot of a busy machine begins
			for {
				err := damage()
				select {
				case <-taken:
					damaged <- err
					return
				case <-t.Context().Done():
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		code, text := t.ask("snapshot")
		close(taken)
		if err := <-damaged; err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); code != exitOK || err != nil {
			t.Fatalf("snapshot: exit code %d, %v", code, err)
		}
		code, out, stderr := tandem(t.T, "trace", "--snapshot", path, "pod", "default/web:80")
		if code == exitDiffers && strings.Contains(out, "DIFFERS") && strings.Contains(out, "missing    element { 10.96.0.10 . tcp . 80 . 0 } of ip slots: this alone changes the outcome") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("exit code %d: %s%s", code, out, stderr)
		}
	}
}
