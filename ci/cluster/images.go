// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// image is an image made by hand: files on a base, which is nothing or a folder.
type image struct {
	Names      []string          // references, such as registry.k8s.io/pause:3.10.2
	Base       string            // a folder that is a layer of its own; empty: none
	Files      map[string]string // host files by their names in the image
	Links      map[string]string // symbolic links
	Entrypoint []string
	Cmd        []string
}

// Media types of the OCI image format.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor points to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// writeImages writes one archive of all images. Images with the same base share its layer.
// Layers are not compressed: they are read once, on this machine.
func writeImages(path string, images []image) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), "blobs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := imageWriter{dir: dir, bases: map[string]descriptor{}}
	index := struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}{2, typeIndex, nil}
	for _, i := range images {
		d, err := w.image(i)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.Names[0], err)
		}
		for _, name := range i.Names {
			d.Annotations = map[string]string{"io.containerd.image.name": name}
			index.Manifests = append(index.Manifests, d)
		}
	}
	text, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return w.archive(path, text)
}

type imageWriter struct {
	dir   string // of blobs
	bases map[string]descriptor
}

// image writes an image's blobs and returns its manifest's descriptor.
func (w *imageWriter) image(i image) (d descriptor, err error) {
	var layers []descriptor
	if i.Base != "" {
		base, ok := w.bases[i.Base]
		if !ok {
			if base, err = w.blob(typeLayer, func(out io.Writer) error { return packFolder(out, i.Base) }); err != nil {
				return d, err
			}
			w.bases[i.Base] = base
		}
		layers = append(layers, base)
	}
	top, err := w.blob(typeLayer, func(out io.Writer) error { return packFiles(out, i) })
	if err != nil {
		return d, err
	}
	layers = append(layers, top)
	var ids []string
	for _, l := range layers {
		ids = append(ids, l.Digest)
	}
	config, err := w.json(typeConfig, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "WorkingDir": "/",
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	})
	if err != nil {
		return d, err
	}
	return w.json(typeManifest, map[string]any{"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": layers})
}

func (w *imageWriter) json(kind string, value any) (descriptor, error) {
	return w.blob(kind, func(out io.Writer) error { return json.NewEncoder(out).Encode(value) })
}

// blob writes a blob under the name of its digest.
func (w *imageWriter) blob(kind string, write func(io.Writer) error) (d descriptor, err error) {
	f, err := os.CreateTemp(w.dir, "new-")
	if err != nil {
		return d, err
	}
	defer f.Close()
	hash := sha256.New()
	if err := write(io.MultiWriter(f, hash)); err != nil {
		return d, err
	}
	info, err := f.Stat()
	if err != nil {
		return d, err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	return descriptor{MediaType: kind, Digest: "sha256:" + sum, Size: info.Size()}, os.Rename(f.Name(), filepath.Join(w.dir, sum))
}

// archive packs the blobs and the index as an OCI layout.
func (w *imageWriter) archive(path string, index []byte) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t := tar.NewWriter(f)
	for name, text := range map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index} {
		if err := add(t, &tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}, bytes.NewReader(text)); err != nil {
			return err
		}
	}
	blobs, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if err := addFile(t, filepath.Join(w.dir, b.Name()), "blobs/sha256/"+b.Name()); err != nil {
			return err
		}
	}
	return t.Close()
}

func add(t *tar.Writer, h *tar.Header, content io.Reader) error {
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(t, content)
	return err
}

// addFile adds a program or another file that root owns.
func addFile(t *tar.Writer, from, name string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return add(t, &tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: int64(info.Mode().Perm() | 0o444), Size: info.Size()}, f)
}

// packFiles packs an image's own files.
func packFiles(out io.Writer, i image) error {
	t := tar.NewWriter(out)
	for name, from := range i.Files {
		if err := addFile(t, from, name); err != nil {
			return err
		}
	}
	for name, to := range i.Links {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(name, "/"), Linkname: to, Mode: 0o777}); err != nil {
			return err
		}
	}
	return t.Close()
}

// packFolder packs a folder with the owners of its files, but for what is neither a file, a
// folder nor a symbolic link.
func packFolder(out io.Writer, dir string) error {
	t := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		case !info.IsDir() && !info.Mode().IsRegular():
			return nil
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		if h.Name, err = filepath.Rel(dir, path); err != nil {
			return err
		}
		if info.IsDir() {
			h.Name += "/"
		}
		h.Uname, h.Gname = "", ""
		if !info.Mode().IsRegular() {
			return t.WriteHeader(h)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return add(t, h, f)
	})
	if err != nil {
		return err
	}
	return t.Close()
}
