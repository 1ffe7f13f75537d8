// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
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
	for name, image := range map[string]bool{archive: false, "tandem.yaml": true, "kustomize/linux.yaml": true, "kustomize/kustomization.yaml": false, "index.yaml": false, "chart/index.json": false, "chart/oci-layout": false} {
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
	text, err := os.ReadFile(filepath.Join(one, "index.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var repository struct {
		APIVersion string
		Entries    map[string][]struct {
			Name, Version, Digest string
			URLs                  []string
		}
	}
	if err := yaml.Unmarshal(text, &repository); err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(filepath.Join(one, archive))
	if err != nil {
		t.Fatal(err)
	}
	charts := repository.Entries["tandem"]
	if repository.APIVersion != "v1" || len(charts) != 1 || charts[0].Name != "tandem" || charts[0].Version != version ||
		!slices.Equal(charts[0].URLs, []string{archive}) || charts[0].Digest != fmt.Sprintf("%x", sha256.Sum256(packed)) {
		t.Errorf("the repository is %s", text)
	}
	pulled, config := pull(t, filepath.Join(one, "chart"), tag)
	var about struct{ Name, Version string }
	if err := json.Unmarshal(config, &about); err != nil || about.Name != "tandem" || about.Version != version || !bytes.Equal(pulled, packed) {
		t.Errorf("%v: the layout has another chart: %s", err, config)
	}
	if err := release(chart, "not a version", one); err == nil {
		t.Error("an invalid version passes")
	}
}

// pull follows a tag of an OCI layout to a chart and its configuration, as Helm finds them by
// their media types, and compares each digest and size.
func pull(t *testing.T, dir, tag string) (archive, config []byte) {
	t.Helper()
	type part struct {
		MediaType, Digest string
		Size              int
		Annotations       map[string]string
	}
	blob := func(p part, kind string) []byte {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "blobs", strings.Replace(p.Digest, ":", "/", 1)))
		if err != nil || p.MediaType != kind || p.Size != len(text) || p.Digest != fmt.Sprintf("sha256:%x", sha256.Sum256(text)) {
			t.Fatalf("%v: %+v is not of kind %s, or has another digest", err, p, kind)
		}
		return text
	}
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Manifests []part }
	if err := json.Unmarshal(text, &index); err != nil || len(index.Manifests) != 1 || index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != tag {
		t.Fatalf("%v: no %s in %s", err, tag, text)
	}
	var manifest struct {
		Config part
		Layers []part
	}
	if err := json.Unmarshal(blob(index.Manifests[0], "application/vnd.oci.image.manifest.v1+json"), &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("%v: %+v", err, manifest)
	}
	return blob(manifest.Layers[0], "application/vnd.cncf.helm.chart.content.v1.tar+gzip"), blob(manifest.Config, "application/vnd.cncf.helm.config.v1+json")
}
