// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/snapshot"
)

// A mode that counts no connections is no mistake on the command line, and has the exit code
// that the help names.
func TestTopOfAModeWithoutCounts(t *testing.T) {
	var text bytes.Buffer
	c := config.Default()
	if err := snapshot.Write(&text, &snapshot.File{Header: snapshot.Header{Format: snapshot.Format, System: "windows", Mode: "kernelspace", Config: c}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.snapshot")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := askTop(&cobra.Command{}, &origin{path: path}, question.TopRequest{})
	if code := exitCode(err); code != exitUsage || errors.As(err, new(usageError)) {
		t.Errorf("exit code %d, want %d: %#v", code, exitUsage, err)
	}
}
