// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	if files[fmt.Sprintf("tandem-%s.tgz", version)], err = pack(dir, head); err != nil {
		return err
	}
	return save(out, files)
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
