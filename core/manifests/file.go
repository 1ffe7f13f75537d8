// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// isManifest reports whether a file of this name is read. Hidden files are not,
// among them "..data" of mounted ConfigMaps and the lock files of editors; nor
// are backups, which end otherwise.
func isManifest(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return name[0] != '.'
	}
	return false
}

// file is the state of one file.
type file struct {
	name  string // within the folder
	shown string // for people

	info  fs.FileInfo // as of the last good reading; nil before it
	read  time.Time   // when that was
	units []unit
	first int            // of its objects in folder.objects
	held  map[key]placed // last good objects that are no longer read, see hold

	problem *Problem // why it could not be read the last time
	gone    bool     // then it was listed, and not there
	shrunk  struct { // when it was first seen truncated in place
		info  fs.FileInfo
		since time.Time
	}
}

// unit is a document that was decoded.
type unit struct {
	digest  digest
	line    int
	objects []*object
}

// digest identifies the content of a document. It is a cryptographic one since
// a collision would silently serve the wrong object.
type digest [sha256.Size]byte

// digest is that of the text, and for an item of a list of that and of the list's kind.
func (d document) digest() digest {
	sum := sha256.Sum256(d.text)
	if d.item {
		sum = sha256.Sum256(append(sum[:], d.kind...))
	}
	return sum
}

var errUnsettled = errors.New("is still being written")

// load returns the content of a file if it may have changed since it was last
// read, and nil if it has not. Anything but a regular file is rejected before it
// is opened, and again after it was: a device may do anything when it is opened.
func (f *file) load(fsys fs.FS, max, room int64, now time.Time) ([]byte, fs.FileInfo, error) {
	info, err := fs.Stat(fsys, f.name)
	switch {
	case err != nil:
		return nil, nil, reason(err)
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("is a %s, only regular files are read", modeName(info.Mode()))
	case info.Size() > max:
		return nil, nil, fmt.Errorf("has %d bytes; the limit is %d", info.Size(), max)
	case info.Size() > room:
		return nil, nil, fmt.Errorf("skipped: with its %d bytes the folder exceeds the limit", info.Size())
	case f.unchanged(info):
		return nil, nil, nil
	case f.unsettled(info, now):
		return nil, nil, errUnsettled
	}
	data, after, err := readAll(fsys, f.name, max)
	switch {
	case err != nil:
		return nil, nil, reason(err)
	case after.Size() != info.Size() || !after.ModTime().Equal(info.ModTime()):
		return nil, nil, errUnsettled
	}
	return data, info, nil
}

// size is the size of the file when it was last read.
func (f *file) size() int64 {
	if f.info == nil {
		return 0
	}
	return f.info.Size()
}

// unchanged reports whether a file is the one that was read. A modification time just
// before the read proves nothing.
func (f *file) unchanged(info fs.FileInfo) bool {
	return f.info != nil && f.problem == nil && f.info.Size() == info.Size() && f.info.ModTime().Equal(info.ModTime()) &&
		os.SameFile(f.info, info) && f.read.Sub(info.ModTime()).Abs() > racyTime
}

// unsettled reports whether a file seems to be rewritten in place: it has been
// shorter than before for a moment only. It uses the local clock, since file systems
// may have another one.
func (f *file) unsettled(info fs.FileInfo, now time.Time) bool {
	if f.info == nil || info.Size() >= f.info.Size() || !os.SameFile(f.info, info) {
		f.shrunk.info = nil
		return false
	}
	if s := f.shrunk.info; s == nil || s.Size() != info.Size() || !s.ModTime().Equal(info.ModTime()) {
		f.shrunk.info, f.shrunk.since = info, now
	}
	return now.Sub(f.shrunk.since) < settleTime
}

func readAll(fsys fs.FS, name string, max int64) (data []byte, after fs.FileInfo, err error) {
	h, err := fsys.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	if after, err = h.Stat(); err != nil {
		return nil, nil, err
	}
	if !after.Mode().IsRegular() {
		return nil, nil, errUnsettled // it was replaced just now
	}
	data = make([]byte, 0, after.Size()+1)
	for {
		n, err := h.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case errors.Is(err, io.EOF):
			after, err = h.Stat()
			return data, after, err
		case err != nil:
			return nil, nil, err
		case int64(len(data)) > min(max, after.Size()):
			return nil, nil, errUnsettled // it grows while it is read
		}
	}
}

// reason removes the file name from an error: the Problem has it.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	if errors.Is(err, errUnsettled) {
		return err
	}
	return fmt.Errorf("cannot be read: %w", err)
}

func modeName(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m&fs.ModeNamedPipe != 0:
		return "FIFO"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// An object is deleted only if the folder certainly does not have it any more:
//
//   - its file is gone, or
//   - its file was read to the end and the object is not in it.
//
// "Could not read" is not "absent". If a file cannot be read all its objects are
// kept. If a document is rejected, but its name can be read, the last good version of
// that object is kept. A document without a readable name may be any of the objects
// that vanished from the file when it became invalid, so all those are held until the
// file is valid again.

// hold returns the objects that are kept although the new content of the file lacks
// them.
func (f *file) hold(units []unit) map[key]placed {
	if !slices.ContainsFunc(units, func(u unit) bool {
		return slices.ContainsFunc(u.objects, func(o *object) bool { return o.bad })
	}) {
		return nil
	}
	present := map[key]bool{}
	var rejectedKeys []key
	nameless, newNameless := false, false
	old := f.namelessDocuments()
	for i := range units {
		for _, o := range units[i].objects {
			switch {
			case !o.bad:
				present[o.key] = true
			case o.key != (key{}):
				rejectedKeys = append(rejectedKeys, o.key)
			default:
				nameless = true
				newNameless = newNameless || !old[units[i].digest]
			}
		}
	}
	held := map[key]placed{}
	if nameless {
		maps.Copy(held, f.held)
	}
	last := f.lastGood()
	for _, k := range rejectedKeys {
		if p, ok := last[k]; ok {
			held[k] = p
		}
	}
	if newNameless {
		maps.Copy(held, last)
	}
	maps.DeleteFunc(held, func(k key, _ placed) bool { return present[k] })
	return held
}

// namelessDocuments returns invalid documents that were there before, too: they do
// not explain objects that are missing now.
func (f *file) namelessDocuments() map[digest]bool {
	old := map[digest]bool{}
	for i := range f.units {
		for _, o := range f.units[i].objects {
			if o.bad && o.key == (key{}) {
				old[f.units[i].digest] = true
			}
		}
	}
	return old
}

// lastGood returns the last good version of each object of the file.
func (f *file) lastGood() map[key]placed {
	last := map[key]placed{}
	maps.Copy(last, f.held)
	for i := range f.units {
		for _, o := range f.units[i].objects {
			if !o.bad && o.usable() {
				last[o.key] = placed{object: o, file: f.shown, line: f.units[i].line}
			}
		}
	}
	return last
}
