// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Snapshots of the modes of both systems, made on Linux, are planned byte for byte alike by the
// program for Windows.
func TestReplayOnWindows(t *testing.T) {
	p := open(t)
	exe := build(t)
	files, err := filepath.Glob(filepath.Join("..", "..", "platform", "testdata", "*.snapshot"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%v: %v", files, err)
	}
	for _, path := range files {
		in, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		c := p.command(exe, "replay", "-")
		c.Stdin = in
		out, err := finish(c)
		if err != nil || !strings.Contains(string(out), "plan: ") {
			t.Errorf("%s: %v: %s", path, err, out)
		}
		_ = in.Close()
	}
}
