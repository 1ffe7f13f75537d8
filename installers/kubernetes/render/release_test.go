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
	one, two := t.TempDir(), t.TempDir()
	for _, dir := range []string{one, two} {
		if err := release(chart, "1.2.3-rc.1", dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tandem-1.2.3-rc.1.yaml", "tandem-chart-1.2.3-rc.1.tgz"} {
		a, err := os.ReadFile(filepath.Join(one, name))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(two, name)); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is different the second time (%v)", name, err)
		}
		if filepath.Ext(name) == ".yaml" && !bytes.Contains(a, []byte("ghcr.io/tandem-proxy/tandem:1.2.3-rc.1")) {
			t.Errorf("%s has another image", name)
		}
	}
	c, err := loader.LoadFile(filepath.Join(one, "tandem-chart-1.2.3-rc.1.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Version != "1.2.3-rc.1" || c.Metadata.AppVersion != "1.2.3-rc.1" || len(c.Schema) == 0 {
		t.Errorf("the chart is %+v", c.Metadata)
	}
	if err := release(chart, "not a version", one); err == nil {
		t.Error("a version that is none passes")
	}
}
