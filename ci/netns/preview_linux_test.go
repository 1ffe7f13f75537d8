// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// An edit that takes an endpoint away is foreseen by plan --against-running, with the
// connections that lose it; an edit that changes nothing as nothing. Exit codes are 3, 0
// and, where a manifest is rejected, 1.
func TestPlanAgainstRunning(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()
	at := map[string]int{}
	for range 20 {
		conn, err := s.net.Connect(lab.Call{From: "10.244.1.10", Proto: model.TCP, To: clusterIP, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		a, err := lab.Ask(conn, time.Second)
		if err != nil || a.Outcome != lab.Answered {
			t.Fatalf("%v %v", a.Outcome, err)
		}
		at[a.Server.Addr().String()]++
	}
	if out, err := s.run(s.bin, "plan", "--against-running", "--manifests", s.dir); err != nil || !strings.HasPrefix(out, "no change") {
		t.Fatalf("of the manifests themselves: %v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "all.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	applied := filepath.Join(t.TempDir(), "applied.yaml")
	if err := os.WriteFile(applied, []byte(regexp.MustCompile(`(?m)^ *clusterIP: .*\n|clusterIP: [^,}]*, `).ReplaceAllString(string(text), "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := s.run(s.bin, "plan", "--against-running", "--manifests", applied); err != nil || !strings.HasPrefix(out, "! Service default/web: cluster IP 10.96.0.10") || !strings.Contains(out, " as now\nno change on ") {
		t.Errorf("as people apply them: %v: %s", err, out)
	}
	edited := filepath.Join(t.TempDir(), "edit.yaml")
	without := strings.ReplaceAll(string(text), "- {addresses: [10.244.1.3], nodeName: node-1, conditions: {ready: true}}\n", "")
	if err := os.WriteFile(edited, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := s.run(s.bin, "plan", "--against-running", "--manifests", edited, "-o", "json")
	if code := exitCode(err); code != 3 {
		t.Errorf("changes are pending: exit code %d", code)
	}
	rejected := filepath.Join(t.TempDir(), "rejected.yaml")
	if err := os.WriteFile(rejected, []byte(without+"---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {clusterIP: 10.96.0.1000, ports: [{port: 80}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := s.run(s.bin, "plan", "--against-running", "--manifests", rejected); exitCode(err) != 1 || !strings.Contains(out, "default/bad") {
		t.Errorf("a manifest is rejected: %v: %s", err, out)
	}
	var p question.Preview
	doc, _, _ := strings.Cut(out, "\ntandem: ")
	if err := json.Unmarshal([]byte(doc), &p); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, svc := range p.Services {
		if svc.Name != "default/web" {
			continue
		}
		if svc.Changed+svc.Deleted == 0 || svc.Connections != 20 || svc.Moved != at["10.244.1.3"] {
			t.Errorf("%d objects changed, %d deleted, %d connections, %d lose their endpoint; want 20 and %d", svc.Changed, svc.Deleted, svc.Connections, svc.Moved, at["10.244.1.3"])
		}
		return
	}
	t.Errorf("default/web is not in it: %s", out)
}

// exitCode is that of a program that was run: 0 without an error, -1 where it did not end
// by itself.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}
