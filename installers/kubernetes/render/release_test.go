// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// TestRelease makes a release twice, the same each time, and loads its chart.
func TestRelease(t *testing.T) {
	const version, tag = "1.2.3-rc.1+4.gabcdef0", "1.2.3-rc.1_4.gabcdef0"
	one, two := t.TempDir(), t.TempDir()
	for _, dir := range []string{one, two} {
		if err := release(chart, version, dir); err != nil {
			t.Fatal(err)
		}
	}
	archive := "tandem-" + version + ".tgz"
	for name, image := range map[string]bool{archive: false, "tandem.yaml": true, "kustomize/linux.yaml": true, "kustomize/kustomization.yaml": false} {
		a, err := os.ReadFile(filepath.Join(one, name))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(two, name)); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is different the second time (%v)", name, err)
		}
		if image && !bytes.Contains(a, []byte(`image: "ghcr.io/tandem-proxy/tandem:`+tag+`"`)) {
			t.Errorf("%s has another image", name)
		}
		if image && bytes.Contains(a, []byte(version)) {
			t.Errorf("%s has a plus sign where none is allowed: in labels and tags", name)
		}
	}
	c, err := loader.LoadFile(filepath.Join(one, archive))
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Version != version || c.Metadata.AppVersion != version || len(c.Schema) == 0 {
		t.Errorf("the chart is %+v", c.Metadata)
	}
	if err := release(chart, "not a version", one); err == nil {
		t.Error("an invalid version passes")
	}
}
