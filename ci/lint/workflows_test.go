// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is what the rules below read of a workflow of GitHub.
type workflow struct {
	On          any            `json:"on"`
	Permissions any            `json:"permissions"`
	Env         map[string]any `json:"env"`
	Jobs        map[string]struct {
		If          string         `json:"if"`
		Uses        string         `json:"uses"`
		Permissions any            `json:"permissions"`
		Secrets     any            `json:"secrets"`
		Env         map[string]any `json:"env"`
		Container   struct{ Image, Options string }
		Steps       []struct {
			Uses, Run string
			With, Env map[string]any
		}
	}
}

var (
	byCommit = regexp.MustCompile(`^(?:\./[\w./-]+|[\w.-]+/[\w./-]+@[0-9a-f]{40})$`)
	byDigest = regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
)

// unsafe returns what a workflow may not have: actions and images that their owner can
// replace, more rights than a job needs, privileges for unreviewed code, secrets in
// more than one step, and texts of users in commands.
func unsafe(w *workflow) (why []string) {
	only := map[string]bool{"": true, "read-all": true}
	if w.Permissions == nil {
		why = append(why, "no permissions at the top")
	} else if text, ok := w.Permissions.(string); ok && !only[text] {
		why = append(why, "permissions "+text)
	} else if rights, ok := w.Permissions.(map[string]any); ok {
		for name, right := range rights {
			if right != "read" && right != "none" {
				why = append(why, "permission for all jobs: "+name)
			}
		}
	}
	events, err := yaml.Marshal(w.On)
	if err != nil {
		return []string{err.Error()}
	}
	if strings.Contains(string(events), "pull_request_target") {
		why = append(why, "pull_request_target")
	}
	secret := func(values ...map[string]any) bool {
		text, err := yaml.Marshal(values)
		return err != nil || strings.Contains(string(text), "secrets.")
	}
	holders := 0
	if secret(w.Env) {
		why = append(why, "a secret for all jobs")
	}
	for name, j := range w.Jobs {
		if j.Uses != "" && !byCommit.MatchString(j.Uses) {
			why = append(why, name+": "+j.Uses)
		}
		if j.Secrets != nil || secret(j.Env) {
			why = append(why, name+": a secret for all steps")
		}
		if j.Permissions == "write-all" {
			why = append(why, name+": write-all")
		}
		if j.Container.Image != "" && !byDigest.MatchString(j.Container.Image) {
			why = append(why, name+": image "+j.Container.Image)
		}
		if strings.Contains(j.Container.Options, "--privileged") && strings.Contains(string(events), "pull_request") &&
			!strings.Contains(j.If, "github.event_name != 'pull_request' || github.event.action == 'labeled' && github.event.label.name == ") {
			why = append(why, name+": privileges for pull requests")
		}
		for _, s := range j.Steps {
			if s.Uses != "" && !byCommit.MatchString(s.Uses) {
				why = append(why, name+": "+s.Uses)
			}
			if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != false {
				why = append(why, name+": checkout keeps the token")
			}
			if strings.Contains(s.Run, "${{") {
				why = append(why, name+": an expression in a command: "+s.Run)
			}
			if secret(s.Env, s.With) {
				holders++
			}
		}
	}
	if holders > 1 {
		why = append(why, "secrets in several steps")
	}
	slices.Sort(why)
	return why
}

func TestWorkflowsAreSafe(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	read := func(text []byte) *workflow {
		t.Helper()
		var w workflow
		text = bytes.Replace(text, []byte("\non:"), []byte("\n\"on\":"), 1) // a boolean in YAML 1.1
		if err := yaml.Unmarshal(text, &w); err != nil || w.On == nil {
			t.Fatal("no events", err)
		}
		return &w
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, why := range unsafe(read(text)) {
			t.Errorf("%s: %s", filepath.Base(file), why)
		}
	}
	const wrong = `
on: {pull_request: {}, pull_request_target: {}}
env: {A: "${{ secrets.A }}"}
jobs:
  a:
    permissions: write-all
    container: {image: "debian:bookworm", options: --privileged}
    steps:
    - uses: actions/checkout@v5
    - run: echo ${{ github.head_ref }}
      env: {B: "${{ secrets.B }}"}
    - uses: actions/cache@3d3c42e5aac5ba805825da76410c181273ba90b1
      with: {key: "${{ secrets.B }}"}
`
	if got := unsafe(read([]byte(wrong))); len(got) != 10 {
		t.Errorf("wrong are %d: %q", len(got), got)
	}
}

// ClusterFuzzLite builds every fuzz target of the module, each under a name of its own.
func TestEveryFuzzTargetIsBuilt(t *testing.T) {
	t.Chdir("../..")
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)`)
	want := map[string]bool{}
	for _, file := range tracked(t, "_test.go") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range target.FindAllSubmatch(text, -1) {
			want["example.com/m/"+path.Dir(file)+" "+string(found[1])] = true
		}
	}
	// The script with stand-ins for what its image has, which say how they are called.
	bin := t.TempDir()
	for name, text := range map[string]string{
		"go":                          "case $1 in env) mkdir -p " + bin + "/goroot && echo " + bin + "/goroot ;; list) echo example.com/m ;; esac",
		"compile_native_go_fuzzer_v2": `echo "$@"`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "bash", ".clusterfuzzlite/build.sh")
	build.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+bin)
	out, err := build.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 3 || !want[f[0]+" "+f[1]] || names[f[2]] {
			t.Errorf("builds %s", line)
			continue
		}
		delete(want, f[0]+" "+f[1])
		names[f[2]] = true
	}
	if len(want) > 0 || len(names) < 40 {
		t.Errorf("of %d built, these are missing: %v", len(names), want)
	}
}
