// SPDX-License-Identifier: Apache-2.0

package openrc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/installers/openrc"
)

// The arguments arrive unchanged, with any characters, and a start fails only for a
// configuration with mistakes.
func TestScript(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "my tandem")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\nexit $CODE\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--config=/etc/a b.yaml", `--node=it's $HOME "x" \y {{.}}`}
	script := filepath.Join(dir, "tandem")
	if err := os.WriteFile(script, []byte(openrc.Script(program, args, "")), 0o755); err != nil {
		t.Fatal(err)
	}
	for code, ok := range map[string]bool{"0": true, "1": true, "2": false} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `ewarn() { echo "$@" >&2; }; . "$0"; start_pre`, script)
		cmd.Env = append(os.Environ(), "CODE="+code, "TANDEM_FLAGS=--v=2")
		out, err := cmd.Output()
		if want := `<run><--config=/etc/a b.yaml><--node=it's $HOME "x" \y {{.}}><--v=2><--init-only>`; string(out) != want || (err == nil) != ok {
			t.Errorf("code %s: %v\n got %s\nwant %s", code, err, out, want)
		}
	}
}

func TestRequiredFile(t *testing.T) {
	text := openrc.Script("/usr/bin/tandem", []string{"run"}, "/etc/tandem/config.yaml")
	if !strings.Contains(text, "\nrequired_files=/etc/tandem/config.yaml\n") || strings.Contains(text, "@") {
		t.Errorf("%s", text)
	}
}
