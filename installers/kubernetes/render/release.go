// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
)

// release writes the manifests, the kustomize base and the archive of a chart,
// stamped with a version. The same input makes the same bytes.
func release(dir, version, out string) error {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	chart.Metadata.Version, chart.Metadata.AppVersion = version, version
	if err := chart.Validate(); err != nil {
		return err
	}
	files, err := plain(chart)
	if err != nil {
		return err
	}
	head, err := yaml.Marshal(chart.Metadata)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("tandem-%s.tgz", version)
	if files[name], err = pack(dir, head); err != nil {
		return err
	}
	if err := ociLayout(files, "chart/", chart.Metadata, files[name]); err != nil {
		return err
	}
	if files["index.yaml"], err = index(chart.Metadata, name, files[name]); err != nil {
		return err
	}
	return save(out, files)
}

// index makes a Helm repository of the folder that an archive is in, such as the files
// attached to a release: "helm repo add tandem URL" with what comes before the file's name.
func index(about *v2.Metadata, name string, archive []byte) ([]byte, error) {
	type entry struct {
		*v2.Metadata
		URLs   []string `json:"urls"`
		Digest string   `json:"digest"`
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1",
		"entries":    map[string][]entry{about.Name: {{about, []string{name}, fmt.Sprintf("%x", sha256.Sum256(archive))}}},
	})
}

// ociLayout adds a chart as registries have it, in a folder to be pushed as it is. A tag has no plus
// sign: Helm writes and reads an underscore in its place.
func ociLayout(files map[string][]byte, dir string, about *v2.Metadata, archive []byte) error {
	type part struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	blob := func(kind string, content []byte) part {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		files[dir+"blobs/sha256/"+sum] = content
		return part{MediaType: kind, Digest: "sha256:" + sum, Size: len(content)}
	}
	config, err := json.Marshal(about)
	if err != nil {
		return err
	}
	const image = "application/vnd.oci.image."
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": image + "manifest.v1+json",
		"config": blob("application/vnd.cncf.helm.config.v1+json", config),
		"layers": []part{blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", archive)},
		"annotations": map[string]string{
			"org.opencontainers.image.title": about.Name, "org.opencontainers.image.version": about.Version, "org.opencontainers.image.description": about.Description,
		},
	})
	if err != nil {
		return err
	}
	entry := blob(image+"manifest.v1+json", manifest)
	entry.Annotations = map[string]string{"org.opencontainers.image.ref.name": strings.ReplaceAll(about.Version, "+", "_")}
	files[dir+"oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	files[dir+"index.json"], err = json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": image + "index.v1+json", "manifests": []part{entry}})
	return err
}

// pack makes a chart's archive, with another Chart.yaml. Times are zero.
func pack(dir string, head []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			data = head
		}
		if err := w.WriteHeader(&tar.Header{Name: "tandem/" + name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	err = errors.Join(err, w.Close(), z.Close())
	return b.Bytes(), err
}
