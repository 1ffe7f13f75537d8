// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/strictyaml"
)

// reader reads a folder again and again and remembers what it has decoded: a document
// whose text has not changed is not decoded twice, however large the file around it
// is and wherever in it the document moves. An object that it has read is kept until
// it is certain that the folder does not have it any more. It is used by one
// goroutine at a time.
type reader struct {
	origin origin
	dir    string // the folder or file, for people
	limits limits
	now    func() time.Time
	files  map[string]*file
	last   *folder // as of the last reading

	bytes     int64 // of all files that are read
	documents int   // in them

	decoded int // documents decoded so far, for tests
}

func newReader(from origin, dir string, nodePorts config.PortRange) *reader {
	r := &reader{origin: from, dir: dir, limits: defaults(), now: time.Now, files: map[string]*file{}}
	r.limits.nodePorts = nodePorts
	return r
}

// folder is the state of a folder after a read: all usable objects, each once, in the
// order of files and lines.
type folder struct {
	objects   []placed
	index     map[key]int // into objects; only until the state has been compared with the one before
	problems  []Problem
	unsettled bool // a file was skipped because it is still being written
	doubtful  bool // a file or document could not be understood

	before *folder // the state that this one has edited, until they have been compared; nil for none
	edits  []edit  // by which they differ
}

// scan brings the reader up to date with the folder, and returns the very same
// state as before where no file has changed. An error means that the folder
// itself could not be listed, and nothing has changed.
func (r *reader) scan(ctx context.Context) (*folder, error) {
	from, err := r.origin.enter(ctx)
	if err != nil {
		return nil, reason(err)
	}
	defer from.leave()
	entries, err := fs.ReadDir(from.files, ".")
	if err != nil {
		return nil, reason(err)
	}
	f := &folder{}
	listed, changed := r.list(f, entries, from.names)
	r.measure(listed)
	inPlace := r.last != nil && !changed && len(r.last.problems) == 0
	var edits []edit
	for _, file := range listed {
		if err := ctx.Err(); err != nil {
			r.last = nil // without the files that were read already: the next scan begins with all
			return nil, err
		}
		had := file.units
		if !r.refresh(ctx, from.files, file, f) {
			continue
		}
		changed = true
		if inPlace = inPlace && file.problem == nil; inPlace {
			edits, inPlace = r.last.edited(file, had, edits)
		}
	}
	switch {
	case f.unsettled || r.last == nil:
	case !changed:
		r.last.unsettled = false // what was being rewritten is as before
		return r.last, nil
	case inPlace:
		r.last = r.last.apply(edits)
		return r.last, nil
	}
	f.merge(listed)
	f.problems = r.shorten(f.problems)
	r.last = f
	return f, nil
}

// Mostly a file is edited, or written anew, and has the same objects as before, in the same
// order. Then a folder is changed in place: what that costs follows from the size of the file, and
// not of the folder.

// edit puts an object in the place of another one.
type edit struct {
	at    int    // in folder.objects
	other placed // the object to be put there; then the one that was there
}

// edited adds the edits after which a file that had some units has its present ones. It is
// false where the objects are others, or not alone in having their keys, or have faults.
func (f *folder) edited(file *file, had []unit, edits []edit) ([]edit, bool) {
	next, stop := iter.Pull2(objectsIn(had))
	defer stop()
	at := file.first
	for line, o := range objectsIn(file.units) {
		_, was, ok := next()
		if !ok || was.key != o.key || was.bad || o.bad || len(was.faults)+len(o.faults) > 0 {
			return nil, false
		}
		if o.key.class == foreign {
			continue
		}
		if at >= len(f.objects) || f.objects[at].object != was {
			return nil, false
		}
		if p := (placed{object: o, file: file.shown, line: line}); p != f.objects[at] {
			edits = append(edits, edit{at, p})
		}
		at++
	}
	_, _, more := next()
	return edits, !more
}

// objectsIn ranges over the objects of units, each with the line of its unit.
func objectsIn(units []unit) iter.Seq2[int, *object] {
	return func(yield func(int, *object) bool) {
		for i := range units {
			for _, o := range units[i].objects {
				if !yield(units[i].line, o) {
					return
				}
			}
		}
	}
}

// apply returns the state after edits. It has the memory of f, which becomes invalid but for
// the comparison of both.
func (f *folder) apply(edits []edit) *folder {
	now := *f
	for i := range edits {
		e := &edits[i]
		now.objects[e.at], e.other = e.other, now.objects[e.at]
	}
	f.before, f.edits = nil, nil
	now.unsettled, now.before, now.edits = false, f, edits
	return &now
}

// list returns the manifests among the entries of the folder, which come sorted, and
// forgets files that are gone. Above the limit known files are preferred: a new one
// must not displace an old one. It reports whether files were added or removed.
func (r *reader) list(f *folder, entries []fs.DirEntry, names bool) (listed []*file, changed bool) {
	files, dir := make(map[string]*file, len(r.files)), r.dir
	if !names {
		dir = filepath.Dir(dir)
	}
	room := r.limits.files
	for _, e := range entries {
		if r.files[e.Name()] != nil {
			room--
		}
	}
	for _, e := range entries {
		name := e.Name()
		if names && !isManifest(name) {
			continue
		}
		known := r.files[name]
		if known == nil {
			if room--; room < 0 {
				continue
			}
			known, changed = &file{name: name, shown: filepath.Join(dir, name)}, true
		}
		files[name] = known
		listed = append(listed, known)
	}
	if room < 0 {
		f.problems = append(f.problems, Problem{
			File: r.dir, Object: "folder", Why: model.WhyInvalid,
			Text: fmt.Sprintf("%d files skipped: the limit is %d", -room, r.limits.files),
		})
	}
	changed = changed || len(files) != len(r.files) || room < 0
	r.files = files
	return listed, changed
}

// refresh reads a file if it has changed, and reports whether it had. If that
// fails, its last known content is kept.
func (r *reader) refresh(ctx context.Context, from fs.FS, file *file, f *folder) (changed bool) {
	now := r.now()
	data, info, err := file.load(from, r.limits.fileBytes, r.roomFor(file), now)
	switch {
	case errors.Is(err, errUnsettled) && file.info != nil:
		f.unsettled = true
		return false
	case err != nil:
		f.unsettled = f.unsettled || errors.Is(err, errUnsettled)
		file.fail(0, err.Error())
		file.gone = errors.Is(err, fs.ErrNotExist)
		return true
	case info == nil:
		return false
	}
	text, line, why := strictyaml.Text(data)
	if why != "" {
		file.fail(line, why)
		return true
	}
	docs := split(text, r.limits.documents)
	if len(docs) > r.limits.documents {
		file.fail(docs[r.limits.documents].line, fmt.Sprintf("the limit of %d documents is exceeded", r.limits.documents))
		return true
	}
	if r.documents-len(file.units)+len(docs) > r.limits.allDocuments {
		file.fail(0, fmt.Sprintf("left out: with its %d documents the folder has more than %d", len(docs), r.limits.allDocuments))
		return true
	}
	units := r.decode(ctx, file, docs)
	if ctx.Err() != nil {
		return false // units is not complete
	}
	r.bytes, r.documents = r.bytes-file.size()+info.Size(), r.documents-len(file.units)+len(units)
	file.held = file.hold(units)
	file.units, file.info, file.read, file.problem = units, info, now, nil
	return true
}

// shorten bounds the number of problems.
func (r *reader) shorten(ps []Problem) []Problem {
	more := len(ps) - r.limits.problems
	if more <= 0 {
		return ps
	}
	ps = slices.Clone(ps[:r.limits.problems]) // the rest can go
	return append(ps, Problem{File: r.dir, Object: "folder", Text: fmt.Sprintf("%d more problems", more), Why: model.WhyInvalid})
}

// measure records the total size of the files that are read.
func (r *reader) measure(files []*file) {
	r.bytes, r.documents = 0, 0
	for _, f := range files {
		r.bytes += f.size()
		r.documents += len(f.units)
	}
}

// roomFor is the largest size of a file that keeps the folder within its limit. A
// known file keeps its share: a new one cannot displace it.
func (r *reader) roomFor(f *file) int64 { return r.limits.allBytes - r.bytes + f.size() }

func (f *file) fail(line int, why string) {
	f.gone = false
	f.problem = &Problem{File: f.shown, Line: line, Object: "file", Text: why, Why: model.WhyInvalid}
}

// decode turns documents into units, those it knows from the last reading
// without decoding them.
func (r *reader) decode(ctx context.Context, file *file, docs []document) []unit {
	units := make([]unit, len(docs))
	for i, doc := range docs {
		units[i] = unit{digest: doc.digest(), line: doc.line}
	}
	fresh := reuse(units, file.units)
	r.decoded += len(fresh)
	d := decoder{limits: r.limits}
	parallel(ctx, len(fresh), func(n int) {
		i := fresh[n]
		objects := d.decode(docs[i])
		for _, o := range objects {
			if o.usable() {
				*o.where() = placed{object: o, file: file.shown, line: docs[i].line}.whereNow()
			}
		}
		units[i].objects = objects
	})
	return units
}

// reuse gives units the objects that equal documents had before, and returns
// the indices of those that are new. Edits are mostly local, so what is equal
// from the start and from the end needs no look-up.
func reuse(units, old []unit) (fresh []int) {
	start := 0
	for start < min(len(units), len(old)) && units[start].digest == old[start].digest {
		units[start].objects = old[start].objects
		start++
	}
	end, oldEnd := len(units), len(old)
	for end > start && oldEnd > start && units[end-1].digest == old[oldEnd-1].digest {
		end, oldEnd = end-1, oldEnd-1
		units[end].objects = old[oldEnd].objects
	}
	known := make(map[digest][]*object, oldEnd-start)
	for i := start; i < oldEnd; i++ {
		known[old[i].digest] = old[i].objects
	}
	for i := start; i < end; i++ {
		if units[i].objects = known[units[i].digest]; units[i].objects == nil {
			fresh = append(fresh, i)
		}
	}
	return fresh
}

// parallel calls do for 0..n-1 on as many goroutines as there are processors,
// and returns when all are done or ctx is.
func parallel(ctx context.Context, n int, do func(int)) {
	const few = 32 // not worth a goroutine
	if n < few {
		for i := 0; i < n && ctx.Err() == nil; i++ {
			do(i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// merge collects the objects of all files. Of two manifests for one object the first
// one counts, in the order of file names and lines. Objects that are only held come
// last: readable ones win.
func (f *folder) merge(files []*file) {
	n := 0
	for _, file := range files {
		n += len(file.units)
	}
	f.index = make(map[key]int, n)
	f.objects = make([]placed, 0, n)
	gone, first := 0, 0 // files that are listed and not there, and the place of their one problem
	for _, file := range files {
		file.first = len(f.objects)
		if file.problem != nil {
			f.doubtful = true
			if file.gone {
				gone++
			}
			if file.gone && gone == 1 {
				first = len(f.problems)
			}
			if !file.gone || gone == 1 {
				f.problems = append(f.problems, *file.problem)
			}
		}
		for i := range file.units {
			for _, o := range file.units[i].objects {
				f.add(placed{object: o, file: file.shown, line: file.units[i].line})
			}
		}
	}
	if gone > 1 { // mostly for one reason, such as a folder that vanished behind links
		f.problems[first].Text += fmt.Sprintf("; the same for %d more files", gone-1)
	}
	for _, file := range files {
		for _, k := range slices.SortedFunc(maps.Keys(file.held), key.compare) {
			if _, ok := f.index[k]; !ok {
				f.index[k] = len(f.objects)
				f.objects = append(f.objects, file.held[k])
			}
		}
	}
}

// add adds an object with its problems.
func (f *folder) add(p placed) {
	for _, fault := range p.faults {
		f.problems = append(f.problems, fault.at(p.file, p.line))
	}
	switch {
	case p.bad:
		f.doubtful = true
		return
	case p.key.class == foreign:
		return
	}
	if i, twice := f.index[p.key]; twice {
		f.problems = append(f.problems, Problem{
			File: p.file, Line: p.line + int(p.start), Object: p.key.String(), Why: model.WhyInvalid,
			Text: "defined twice: using the one in " + f.objects[i].whereNow(), Of: p.service(),
		})
		return
	}
	f.index[p.key] = len(f.objects)
	f.objects = append(f.objects, p)
}

// Result is the content of a folder, in the order of files and lines, with its problems.
type Result struct {
	model.Objects
	Problems   []Problem
	Unassigned []model.Unassigned // only of ReadAsApplied
}

// Read reads a folder, a single file or the standard input (Stdin) once. An error
// means that there is no such folder or that it cannot be listed; anything else that
// is invalid is in Result.Problems, and everything valid is in Result.Objects. Node
// ports outside the range are problems.
func Read(ctx context.Context, dir string, nodePorts config.PortRange) (Result, error) {
	return newReader(originOf(dir), dir, nodePorts).Read(ctx)
}

// ReadAsApplied is Read for manifests as people apply them: what an API server would assign to a Service is not a
// problem, but Unassigned.
func ReadAsApplied(ctx context.Context, dir string, nodePorts config.PortRange) (Result, error) {
	r := newReader(originOf(dir), dir, nodePorts)
	r.limits.applied = true
	return r.Read(ctx)
}

// ReadFS is Read for the root of a file system, such as an embedded one, with any
// node ports.
func ReadFS(ctx context.Context, fsys fs.FS) (Result, error) {
	return newReader(whole{fsys}, "", config.PortRange{}).Read(ctx)
}

// Read reads what has changed in the folder and returns all that is in it now.
// An error means that the folder could not be listed.
func (r *reader) Read(ctx context.Context) (Result, error) {
	f, err := r.scan(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("manifests %s: %w", strictyaml.Printable(r.dir), err)
	}
	return f.collect(), nil
}

func (f *folder) collect() Result {
	found := Result{Problems: f.problems}
	for _, p := range f.objects {
		found.Add(p.moved().value)
		if p.open != (open{}) {
			found.Unassigned = append(found.Unassigned, model.Unassigned{
				Service: model.ServiceName{Namespace: p.key.namespace, Name: p.key.name}, ClusterIPs: p.open.clusterIPs, NodePorts: p.open.nodePorts,
			})
		}
	}
	return found
}
