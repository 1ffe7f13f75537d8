package manifests

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Problem is something in the folder that was refused or left out. It is a
// comparable value.
type Problem struct {
	File   string // the file's path, or the folder's
	Line   int    // counted from 1; 0 when the whole file is meant
	Object string // "Service default/web", "document", "file" or "folder"
	Text   string // what and why: "spec.ports[0].prot: unknown field"
	Why    model.Reason
}

// Model returns the problem in the form that all sources share.
func (p Problem) Model() model.Problem {
	return model.Problem{
		Object: p.Object, Where: where(p.File, p.Line), Why: p.Why,
		Detail: strings.TrimSuffix(p.Text, ": "+p.Why.Text()),
	}
}

// String returns the problem as one line: "web.yaml:12: Service default/web:
// spec.ports[0].prot: unknown field". Nothing in it can disturb a terminal.
func (p Problem) String() string {
	return where(p.File, p.Line) + ": " + p.Object + ": " + p.Text
}

// where returns "file:line", or "file" if the line is 0.
func where(file string, line int) string {
	if line == 0 {
		return printable(file)
	}
	return printable(file) + ":" + strconv.Itoa(line)
}

// fault is a Problem before it is known where its document stands.
type fault struct {
	line   int    // counted from 0, from the document's first line
	path   string // of the field it is about, while its line is not known
	object string
	text   string
	why    model.Reason // 0 for model.WhyInvalid
	first  *int         // the line of what this repeats, or nil
}

// at returns the problem of a document that starts in a line of a file.
func (f fault) at(file string, line int) Problem {
	p := Problem{File: file, Line: line + f.line, Object: f.object, Text: f.text, Why: f.why}
	if p.Why == 0 {
		p.Why = model.WhyInvalid
	}
	if f.first != nil {
		p.Text += " in line " + strconv.Itoa(line+*f.first)
	}
	return p
}

// printable returns s unless it holds what could disturb a log or a terminal;
// then it is quoted.
func printable(s string) string {
	if q := strconv.Quote(s); q[1:len(q)-1] != strings.ReplaceAll(s, `\`, `\\`) {
		return q
	}
	return s
}

// quoted returns a user's value for a message, shortened.
func quoted(s string) string {
	const longest = 60
	if len(s) > longest {
		return strconv.Quote(s[:longest]) + "..."
	}
	return strconv.Quote(s)
}

func sortFaults(fs []fault) {
	slices.SortStableFunc(fs, func(a, b fault) int { return a.line - b.line })
}
