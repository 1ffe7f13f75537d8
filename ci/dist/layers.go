// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file is a file of a layer, or a symbolic link, or a folder.
type file struct {
	name    string // without a leading slash
	mode    fs.FileMode
	content []byte
	link    string // where to, if it is a link
	folder  bool
}

// layer packs files, with the folders they are in. All belong to root.
func (r release) layer(t target, files []file) (v1.Layer, error) {
	if t.os == "windows" {
		files = r.windowsLayer(files)
	}
	text, err := r.tar(withFolders(files), t.os == "windows")
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// windowsLayer puts files where the layers of Windows have them, below Files, and
// with them what Windows expects in a lowest layer.
func (r release) windowsLayer(files []file) []file {
	out := hives(r.when)
	for _, f := range files {
		f.name = "Files/" + f.name
		out = append(out, f)
	}
	return out
}

// withFolders adds the folders of files, and sorts: a folder comes before what
// it holds.
func withFolders(files []file) []file {
	known := map[string]file{}
	for _, f := range files {
		for dir := path.Dir(f.name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if _, ok := known[dir]; !ok {
				known[dir] = file{name: dir, folder: true}
			}
		}
		known[f.name] = f
	}
	var out []file
	for _, f := range known {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return out
}

// tar writes files in their order.
func (r release) tar(files []file, windows bool) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := header(f, r.when)
		if windows {
			h.Format = tar.FormatPAX
			h.PAXRecords = map[string]string{"MSWINDOWS.rawsd": base64.StdEncoding.EncodeToString(ownedBy(administrators()))}
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func header(f file, when time.Time) *tar.Header {
	switch {
	case f.folder:
		return &tar.Header{Typeflag: tar.TypeDir, Name: f.name + "/", Mode: 0o755, ModTime: when}
	case f.link != "":
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: f.name, Linkname: f.link, Mode: 0o777, ModTime: when}
	}
	return &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.content)), Mode: int64(f.mode.Perm()), ModTime: when}
}

// archive packs a folder into a tar file.
func (r release) archive(dir, to string) error {
	var files []file
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, file{name: filepath.ToSlash(name), mode: 0o644, content: content})
		return err
	})
	if err != nil {
		return err
	}
	text, err := r.tar(withFolders(files), false)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}
