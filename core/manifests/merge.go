package manifests

import (
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// merge collects the objects of all files. Of two manifests for one object the
// first one counts, in the order of file names and lines. Objects that are only
// held come last: what can be read wins over what could be.
func (f *folder) merge(files []*file) {
	n := 0
	for _, file := range files {
		n += len(file.units)
	}
	f.index = make(map[key]int, n)
	f.objects = make([]placed, 0, n)
	for _, file := range files {
		if file.problem != nil {
			f.doubtful = true
			f.problems = append(f.problems, *file.problem)
		}
		for i := range file.units {
			for _, o := range file.units[i].objects {
				f.add(placed{object: o, file: file.shown, line: file.units[i].line})
			}
		}
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
	case p.foreign != "":
		f.ignored[p.foreign]++
		return
	case p.bad:
		f.doubtful = true
		return
	}
	if i, twice := f.index[p.key]; twice {
		f.problems = append(f.problems, Problem{
			File: p.file, Line: p.line + int(p.start), Object: p.key.String(), Why: model.WhyInvalid,
			Text: "defined twice: the one in " + f.objects[i].whereNow() + " counts",
		})
		return
	}
	f.index[p.key] = len(f.objects)
	f.objects = append(f.objects, p)
}
