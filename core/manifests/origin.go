// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Stdin is the name of the standard input, in the place of a folder's.
const Stdin = "-"

// origin is where files are read from. It is opened for each read, since the name may
// refer to another folder by then.
type origin interface {
	// enter returns the files; leave closes what was opened for it. Names says
	// that a file counts by its name; otherwise there is only one, which does.
	enter(context.Context) (o opened, err error)
}

type opened struct {
	files fs.FS
	names bool
	leave func()
}

func stay() {}

// originOf returns the origin for a value of --manifests: the standard input, a
// folder, or a single file.
func originOf(name string) origin {
	if name == Stdin {
		return &input{from: os.Stdin}
	}
	return place(name)
}

// Reachable reports why a service could not read manifests from a folder or file,
// without reading them.
func Reachable(name string) error {
	if name == Stdin {
		return errors.New("a service has no standard input: name a folder or a file")
	}
	from, err := originOf(name).enter(context.Background())
	if err != nil {
		return err
	}
	defer from.leave()
	entries, err := fs.ReadDir(from.files, ".")
	if err != nil || from.names {
		return err
	}
	_, _, err = readAll(from.files, entries[0].Name(), defaults().fileBytes)
	return err
}

// whole is a file system that is read from its root.
type whole struct{ fs.FS }

func (w whole) enter(context.Context) (opened, error) { return opened{w.FS, true, stay}, nil }

// place is a folder or a file.
type place string

func (p place) enter(context.Context) (opened, error) {
	info, err := os.Stat(string(p))
	if err != nil {
		return opened{}, err
	}
	if !info.IsDir() {
		return opened{single(p), false, stay}, nil
	}
	root, err := os.OpenRoot(string(p))
	if err != nil {
		return opened{}, err
	}
	return opened{folderFS{root}, true, func() { _ = root.Close() }}, nil // nothing was written
}

// folderFS is a folder without files that links point to outside of it. The links of
// a mounted ConfigMap stay inside.
type folderFS struct{ root *os.Root }

var _ fs.FS = folderFS{}

func (f folderFS) Open(name string) (fs.File, error) {
	file, err := f.root.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, err // not an interface with a nil file
	}
	return file, nil
}

var _ fs.StatFS = folderFS{}

func (f folderFS) Stat(name string) (fs.FileInfo, error) { return f.root.Stat(name) }

var _ fs.ReadDirFS = folderFS{}

func (f folderFS) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(f.root.FS(), name) }

// single is a file that the user has named, so that it may be a link to anywhere.
type single string

var _ fs.FS = single("")

func (s single) Open(string) (fs.File, error) {
	file, err := os.OpenFile(string(s), openFlags, 0)
	if err != nil {
		return nil, err
	}
	return file, nil
}

var _ fs.StatFS = single("")

func (s single) Stat(string) (fs.FileInfo, error) { return os.Stat(string(s)) }

var _ fs.ReadDirFS = single("")

func (s single) ReadDir(string) ([]fs.DirEntry, error) {
	info, err := os.Stat(string(s))
	if err != nil {
		return nil, err
	}
	return []fs.DirEntry{entryAs{fs.FileInfoToDirEntry(info), filepath.Base(string(s))}}, nil
}

// entryAs is an entry under the name that was requested.
type entryAs struct {
	fs.DirEntry
	name string
}

var _ fs.DirEntry = entryAs{}

func (n entryAs) Name() string { return n.name }

// input is a stream that is read to its end, once.
type input struct {
	from io.Reader
	text []byte
	read bool
	at   time.Time
}

// enter waits for the end of the stream, or of ctx. In the latter case the reading
// goroutine ends with the process, since a read from a terminal cannot be cancelled.
func (in *input) enter(ctx context.Context) (opened, error) {
	if in.read {
		return opened{in, false, stay}, nil
	}
	type result struct {
		text []byte
		err  error
	}
	max := defaults().fileBytes
	done := make(chan result, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(in.from, max+1))
		done <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		return opened{}, ctx.Err()
	case r := <-done:
		switch {
		case r.err != nil:
			return opened{}, r.err
		case int64(len(r.text)) > max:
			return opened{}, fmt.Errorf("larger than the limit of %d bytes", max)
		}
		in.text, in.read, in.at = r.text, true, time.Now()
		return opened{in, false, stay}, nil
	}
}

var _ fs.FS = (*input)(nil)

func (in *input) Open(string) (fs.File, error) {
	return inputFile{inputInfo{in}, bytes.NewReader(in.text)}, nil
}

var _ fs.StatFS = (*input)(nil)

func (in *input) Stat(string) (fs.FileInfo, error) { return inputInfo{in}, nil }

var _ fs.ReadDirFS = (*input)(nil)

func (in *input) ReadDir(string) ([]fs.DirEntry, error) {
	return []fs.DirEntry{fs.FileInfoToDirEntry(inputInfo{in})}, nil
}

// inputFile is the content of an input as a file.
type inputFile struct {
	inputInfo
	*bytes.Reader
}

var _ fs.File = inputFile{}

func (f inputFile) Stat() (fs.FileInfo, error) { return f.inputInfo, nil }

var _ fs.FileInfo = inputFile{}

func (f inputFile) Size() int64 { return f.inputInfo.Size() }

func (f inputFile) Close() error { return nil }

// inputInfo implements fs.FileInfo for an input.
type inputInfo struct{ in *input }

func (i inputInfo) Name() string       { return "stdin" }
func (i inputInfo) Size() int64        { return int64(len(i.in.text)) }
func (i inputInfo) Mode() fs.FileMode  { return 0o400 }
func (i inputInfo) ModTime() time.Time { return i.in.at }
func (i inputInfo) IsDir() bool        { return false }
func (i inputInfo) Sys() any           { return nil }
