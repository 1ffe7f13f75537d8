// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/strictyaml"
)

// Problem is something in the folder that was rejected or skipped. It is comparable.
type Problem struct {
	File   string // the file's path, or the folder's
	Line   int    // counted from 1; 0 when the whole file is meant
	Object string // "Service default/web", "document", "file" or "folder"
	Text   string // field and cause: "spec.ports[0].prot: unknown field"
	Why    model.Reason
	Of     model.ServiceName // as in model.Problem
}

// Models returns problems in the form that all sources share.
func Models(all []Problem) []model.Problem {
	ps := make([]model.Problem, len(all))
	for i, p := range all {
		ps[i] = p.Model()
	}
	return ps
}

// Model returns the problem in that form.
func (p Problem) Model() model.Problem {
	return model.Problem{
		Object: p.Object, Of: p.Of, Where: where(p.File, p.Line), Why: p.Why,
		Detail: strings.TrimSuffix(p.Text, ": "+p.Why.Text()),
	}
}

// String returns the problem as one line: "web.yaml:12: Service default/web:
// spec.ports[0].prot: unknown field". It is safe to print on a terminal.
func (p Problem) String() string {
	return where(p.File, p.Line) + ": " + p.Object + ": " + p.Text
}

// where returns "file:line", or "file" if the line is 0.
func where(file string, line int) string {
	if line == 0 {
		return strictyaml.Printable(file)
	}
	return strictyaml.Printable(file) + ":" + strconv.Itoa(line)
}

// fault is a Problem before the position of its document is known.
type fault struct {
	line   int    // counted from 0, from the document's first line
	path   string // of the field it is about, while its line is not known
	object string
	of     model.ServiceName // as in model.Problem
	text   string
	why    model.Reason // 0 for model.WhyInvalid
	first  *int         // the line of what this repeats, or nil
}

// at returns the problem of a document that starts in a line of a file.
func (f fault) at(file string, line int) Problem {
	p := Problem{File: file, Line: line + f.line, Object: f.object, Of: f.of, Text: f.text, Why: f.why}
	if p.Why == 0 {
		p.Why = model.WhyInvalid
	}
	if f.first != nil {
		p.Text += " in line " + strconv.Itoa(line+*f.first)
	}
	return p
}

func sortFaults(fs []fault) {
	slices.SortStableFunc(fs, func(a, b fault) int { return a.line - b.line })
}

// limits bound the cost of a folder. Users who can write to it may be less
// trusted than those running the proxy.
type limits struct {
	files        int // in the folder
	fileBytes    int64
	allBytes     int64             // in all files of the folder
	documents    int               // in a file
	allDocuments int               // in all files of the folder
	problems     int               // of the folder that are reported
	docBytes     int               // in a document, or in one item of a List
	yaml         strictyaml.Limits // of a document

	nodePorts config.PortRange // that Services may have
	applied   bool             // as people apply them: what an API server assigns is not missing
}

// defaults: Kubernetes itself refuses objects above 1.5 MiB (etcd), and no
// object read here nests deeper than about fifteen levels. 100,000 Services with
// their slices are some 250 MB in 200,000 documents; what is kept of a document,
// however small it is, takes half a kilobyte.
func defaults() limits {
	return limits{
		files: 50_000, fileBytes: 64 << 20, allBytes: 512 << 20, documents: 200_000, allDocuments: 400_000, docBytes: 2 << 20,
		problems: 1000,
		yaml:     strictyaml.Limits{Depth: 64, Work: 2_000_000, JSONBytes: 8 << 20, Faults: 20},
	}
}

const (
	// settleTime is how long a file that was truncated in place must stay unchanged
	// before it is read: an editor may still be writing. Files replaced by renaming
	// are complete at once.
	settleTime = 100 * time.Millisecond

	// racyTime is the age of a modification time below which a later change may have
	// the same one. FAT and some network file systems have a resolution of two
	// seconds.
	racyTime = 2100 * time.Millisecond
)
