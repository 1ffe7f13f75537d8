// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/opencontainers/image-spec/schema"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

// index returns an image of the release: what its layout's one entry leads to.
func index(t *testing.T, r release, image string) v1.ImageIndex {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(filepath.Join(r.out, "images", image))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := outer.IndexManifest()
	if err != nil || len(entries.Manifests) != 1 {
		t.Fatal(err, entries)
	}
	// The manifests use these names; a tag has no plus sign.
	want := "ghcr.io/tandem-proxy/tandem:1.2.3_4.gabcdef0" + strings.TrimPrefix(image, "tandem")
	if got := entries.Manifests[0].Annotations["io.containerd.image.name"]; got != want {
		t.Errorf("%s is imported as %s, not %s", image, got, want)
	}
	if _, err := name.ParseReference(want, name.StrictValidation); err != nil {
		t.Error(err)
	}
	inner, err := outer.ImageIndex(entries.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return inner
}

// conforms judges a document by the schema of the OCI image specification.
func conforms(t *testing.T, what string, v schema.Validator, text []byte, err error) {
	t.Helper()
	if err == nil {
		err = v.Validate(strings.NewReader(string(text)))
	}
	if err != nil {
		t.Errorf("%s: %v\n%s", what, err, text)
	}
}

func TestImagesConform(t *testing.T) {
	r := built(t)
	for image, want := range map[string]string{
		"tandem":          "linux/amd64 linux/arm64 windows/amd64",
		"tandem-iptables": "linux/amd64 linux/arm64",
	} {
		idx := index(t, r, image)
		if err := validate.Index(idx); err != nil {
			t.Errorf("%s: %v", image, err)
		}
		raw, err := idx.RawManifest()
		conforms(t, image, schema.ValidatorMediaTypeImageIndex, raw, err)
		m, err := idx.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var platforms []string
		for _, d := range m.Manifests {
			platforms = append(platforms, d.Platform.OS+"/"+d.Platform.Architecture)
			if d.Platform.OSVersion != "" {
				t.Errorf("%s %s is for os.version %s alone", image, d.Platform, d.Platform.OSVersion)
			}
			img, err := idx.Image(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := img.RawManifest()
			conforms(t, "manifest", schema.ValidatorMediaTypeManifest, raw, err)
			raw, err = img.RawConfigFile()
			conforms(t, "config", schema.ValidatorMediaTypeImageConfig, raw, err)
			// By its name alone it is what kubectl tandem runs in a pod: "tandem control" (cmd/tandem, executed).
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			dir, program := path.Split("/" + linuxProgram)
			if in := config.Config.Env; d.Platform.OS == "linux" && (program != "tandem" || len(in) != 1 || !strings.HasPrefix(in[0], "PATH="+path.Clean(dir)+":")) {
				t.Errorf("%s: %s is not found in %v", image, linuxProgram, in)
			}
		}
		if got := strings.Join(platforms, " "); got != want {
			t.Errorf("%s is for %s", image, got)
		}
	}
}

// containerd takes the Windows image on every build of Windows, and no other; it
// would not if the image named a build.
func TestEveryWindows(t *testing.T) {
	m, err := index(t, built(t), "tandem").IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	pinned := specs.Platform{OS: "windows", Architecture: "amd64", OSVersion: "10.0.20348"}
	for build, match := range map[string]bool{"10.0.17763": false, "10.0.20348": true, "10.0.26100": true} {
		node := platforms.NewMatcher(specs.Platform{OS: "windows", Architecture: "amd64", OSVersion: build})
		for _, d := range m.Manifests {
			p := specs.Platform{OS: d.Platform.OS, Architecture: d.Platform.Architecture, OSVersion: d.Platform.OSVersion}
			if node.Match(p) != (p.OS == "windows") {
				t.Errorf("on %s containerd takes %s: %t", build, platforms.FormatAll(p), node.Match(p))
			}
		}
		if node.Match(pinned) != match {
			t.Errorf("on %s containerd takes an image for %s: %t", build, pinned.OSVersion, !match)
		}
	}
}

// The Windows image has the program and the licences below Files, and the hives that Windows wants
// in a lowest layer; all belongs to administrators.
func TestWindowsLayer(t *testing.T) {
	r := release{when: time.Unix(1800000000, 0)}
	text, err := r.tar(withFolders(r.windowsLayer(programFiles(target{"windows", "amd64"}, []byte("MZ"), []byte("licence")))), true)
	if err != nil {
		t.Fatal(err)
	}
	const config = "Files/Windows/System32/config/"
	want := "Files/ Files/LICENSE.txt Files/Windows/ Files/Windows/System32/ " + config
	for _, hive := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		want += " " + config + hive
	}
	if got := listing(t, text); got != want+" Files/tandem.exe" {
		t.Error(got)
	}
	h, err := tar.NewReader(bytes.NewReader(text)).Next()
	const owner = "AQAAgBQAAAAkAAAAAAAAAAAAAAABAgAAAAAABSAAAAAgAgAAAQIAAAAAAAUgAAAAIAIAAA=="
	if err != nil || h.PAXRecords["MSWINDOWS.rawsd"] != owner {
		t.Error(err, h.PAXRecords)
	}
}

// What is pushed to a registry comes back the same.
func TestPushAndPull(t *testing.T) {
	r := built(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	idx := index(t, r, "tandem")
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/tandem:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, idx, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	back, err := remote.Index(ref, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	a, errA := idx.Digest()
	b, errB := back.Digest()
	if errA != nil || errB != nil || a != b {
		t.Errorf("%v came back as %v (%v, %v)", a, b, errA, errB)
	}
	if err := validate.Index(back); err != nil {
		t.Error(err)
	}
}
