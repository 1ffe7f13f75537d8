package watch

import (
	"strconv"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

// faults collects the problems of one object.
type faults struct {
	kind  string
	meta  *metav1.ObjectMeta
	found []model.Problem
	more  int
}

// bad notes that the value of a field was refused, and in the remark what is
// wrong with it or done instead.
func (f *faults) bad(why model.Reason, path, value, remark string) {
	f.add(why, path+": "+printable(value), remark)
}

// add notes that something about a field was refused.
func (f *faults) add(why model.Reason, detail, remark string) {
	if len(f.found) == model.MaxProblems {
		f.more++
		return
	}
	if remark != "" {
		detail += " (" + remark + ")"
	}
	f.found = append(f.found, model.Problem{Object: f.object(), Why: why, Detail: detail})
}

// problems returns what was collected.
func (f *faults) problems() []model.Problem { return model.More(f.found, f.more) }

func (f *faults) object() string {
	if f.meta.Namespace == "" {
		return f.kind + " " + printable(f.meta.Name)
	}
	return f.kind + " " + printable(f.meta.Namespace+"/"+f.meta.Name)
}

// FieldPath returns the path of the field that a problem of this package is
// about, such as "spec.ports[1].port".
func FieldPath(p model.Problem) string {
	end := strings.IndexAny(p.Detail, ": (,")
	if end < 0 {
		return p.Detail
	}
	return p.Detail[:end]
}

// at returns the path of an element of a list, with a further field if any.
func at(list string, i int, field string) string {
	s := list + "[" + strconv.Itoa(i) + "]"
	if field != "" {
		s += "." + field
	}
	return s
}

// printable returns s as it is when it is plain, and quoted otherwise: names
// and addresses may come from a file that anybody wrote, and end up in logs and
// on terminals.
func printable(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/%", r)
	}
	if s == "" || strings.TrimFunc(s, plain) != "" {
		return strconv.Quote(s)
	}
	return s
}

// shared returns a string equal to s that all equal strings share. A cluster
// has few nodes and zones but names them in every endpoint.
func shared(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}

// port16 converts a port number; ok is false outside 1..65535.
func port16(n int32) (port uint16, ok bool) {
	if n < 1 || n > 65535 {
		return 0, false
	}
	return uint16(n), true
}

// portName reports whether a port name is empty or a DNS label, the only ones
// that Kubernetes admits. Port names end up in the comments and names of
// kernel objects, so nothing else may pass.
func portName(s string) bool {
	if s == "" {
		return true
	}
	if len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// protocol converts a protocol; the empty one means TCP.
func protocol(s string) (p model.Proto, ok bool) {
	switch s {
	case "", "TCP":
		return model.TCP, true
	case "UDP":
		return model.UDP, true
	case "SCTP":
		return model.SCTP, true
	}
	return 0, false
}
