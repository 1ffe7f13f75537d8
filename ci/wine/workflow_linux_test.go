// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tandem-proxy/tandem/installers/windows"
)

// TestWorkflow runs steps of .github/workflows/windows.yml by Wine's cmd, which has no curl,
// no Docker, and no config of sc: the report, the installation and the removal.
func TestWorkflow(t *testing.T) {
	needPackers(t)
	text, err := os.ReadFile("../../.github/workflows/windows.yml")
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs struct {
			Node struct{ Steps []struct{ ID, Run string } }
		}
	}
	if err := yaml.Unmarshal(text, &workflow); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	s := newService(t, p)
	exe := p.path(s.exe)
	files, err := windows.Build(t.Context(), windows.Options{Exe: exe, Version: "v0.0.1", Arch: "amd64", License: "../../LICENSE", Out: t.TempDir(), Date: time.Unix(1700000000, 0)})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, from := range map[string]string{"tandem.exe": exe, "tandem.msi": files[0], "config.yaml": "../windows/config.yaml", "services.yaml": "../windows/services.yaml"} {
		if err := copyFile(filepath.Join(dir, name), from); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Dir(exe)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.says("msiexec", "/x", windowsPath(files[0]), "/qn") })

	steps := map[string]string{}
	for _, step := range workflow.Jobs.Node.Steps {
		steps[step.ID], _, _ = strings.Cut(step.Run, "sc config ")
	}
	for _, id := range []string{"experiments", "install", "uninstall"} {
		file := filepath.Join(dir, id+".bat")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(steps[id], "\n", "\r\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		c := p.command("cmd", "/d", "/c", "call", id+".bat")
		c.Dir, c.Env = dir, append(c.Env, "HNSEMU_ADDR="+s.addr)
		out, err := finish(c)
		if err != nil || steps[id] == "" {
			t.Fatalf("step %s: %v\n%s", id, err, out)
		}
		t.Logf("step %s: %d lines of output", id, strings.Count(string(out), "\n"))
	}
	if _, err := os.Stat(filepath.Join(dir, "hns-report.json")); err != nil || len(s.emu.Balancers()) > 0 {
		t.Errorf("the report: %v; left: %v", err, s.emu.Balancers())
	}
	s.sound()
}
