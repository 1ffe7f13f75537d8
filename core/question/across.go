// SPDX-License-Identifier: Apache-2.0

package question

import (
	"cmp"
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Across is how the answers of several nodes to one question differ. Its JSON form is stable.
type Across struct {
	Nodes       []ComparedNode     `json:"nodes"`
	Differences []AnswerDifference `json:"differences"`
	Unlisted    int                `json:"unlisted,omitempty"` // differences beyond those that are listed
}

// NodeAnswer is that of a node, in short.
type NodeAnswer struct {
	Node string `json:"node"`
	Pod  string `json:"pod"`
	Err  string `json:"error,omitempty"` // why it gave none
}

// answered is an entry for a node, and for one that gave no answer, with the reason.
func answered(node, pod string) NodeAnswer { return NodeAnswer{Node: node, Pod: pod} }

func unanswered(node, pod string, err error) NodeAnswer {
	return NodeAnswer{Node: node, Pod: pod, Err: cmp.Or(err.Error(), "no reason given")}
}

// Answer returns the part of a larger answer that embeds it.
func (n NodeAnswer) Answer() NodeAnswer { return n }

func (n *NodeAnswer) compare(o *NodeAnswer) int {
	return cmp.Or(cmp.Compare(n.Node, o.Node), cmp.Compare(n.Pod, o.Pod))
}

// ComparedNode is a node whose answer was compared.
type ComparedNode struct {
	NodeAnswer
	Differs bool `json:"differs"` // from what most nodes answer
}

// AnswerDifference is a field of which a node has another value than most.
type AnswerDifference struct {
	Node  string `json:"node"`
	Field string `json:"field"`          // as in JSON, with the names of entries in place of their numbers
	Most  string `json:"most,omitempty"` // absent where most have none
	Here  string `json:"here,omitempty"`
}

// How an answer's fields are compared across nodes: by the tag of a field.
const (
	acrossTag = "nodes"
	skipped   = "-"   // every node has its own, such as times and counts
	ownText   = "own" // like skipped; and where the text is within others, its name stands for it, such as the node's name
	keyText   = "key" // with the others of its kind it says which entry of a list this is
)

// The bounds of a comparison: answers are untrusted input. Of most answers a hash is kept.
const (
	maxCompared    = 64 << 20 // bytes of the answers that are kept, each of which stands for all equal ones
	maxDifferences = 10_000   // listed
	present        = "present"
)

// value is a field of an answer.
type value struct{ path, text string }

// alike are nodes with one answer.
type alike[A any] struct {
	nodes  int
	first  string // of them, whose answer is kept
	answer A
	values []value // in the order of paths; nil where there was no room
	kept   bool
}

// Comparison compares answers as they come. It is safe for concurrent use.
type Comparison[A any] struct {
	mu      sync.Mutex
	nodes   []ComparedNode
	hash    map[string]string // by node and pod
	answers map[string]*alike[A]
	size    int
}

// Add notes a node's answer, of which document is compared.
func (c *Comparison[A]) Add(node, pod string, answer A, document any) {
	values := valuesOf(document)
	sum, size := sha256.New(), 0
	for _, v := range values {
		size += len(v.path) + len(v.text)
		fmt.Fprintf(sum, "%q %q\n", v.path, v.text)
	}
	hash := string(sum.Sum(nil))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hash == nil {
		c.hash, c.answers = map[string]string{}, map[string]*alike[A]{}
	}
	c.nodes = append(c.nodes, ComparedNode{NodeAnswer: answered(node, pod)})
	c.hash[node+"/"+pod] = hash
	same := c.answers[hash]
	if same == nil {
		same = new(alike[A])
		if c.answers[hash] = same; c.size+size <= maxCompared || len(c.answers) == 1 {
			c.size += size
			same.answer, same.first, same.values, same.kept = answer, node, values, true
		}
	}
	if same.nodes++; same.kept && node <= same.first {
		same.answer, same.first = answer, node
	}
}

// Fail notes why a node gave no answer.
func (c *Comparison[A]) Fail(node, pod string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = append(c.nodes, ComparedNode{NodeAnswer: unanswered(node, pod, err)})
}

// Result is how the answers differ, and that of most nodes: of several that are as frequent, that of the first
// node. ok is false where no node has answered.
func (c *Comparison[A]) Result() (a Across, most A, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a = Across{Nodes: slices.Clone(c.nodes), Differences: []AnswerDifference{}}
	slices.SortFunc(a.Nodes, func(x, y ComparedNode) int { return x.compare(&y.NodeAnswer) })
	var usual *alike[A]
	of := func(n *ComparedNode) *alike[A] { return c.answers[c.hash[n.Node+"/"+n.Pod]] }
	for i := range a.Nodes {
		if n := &a.Nodes[i]; n.Err == "" && (usual == nil || of(n).nodes > usual.nodes) {
			usual = of(n)
		}
	}
	if usual == nil {
		return a, most, false
	}
	for i := range a.Nodes {
		n := &a.Nodes[i]
		if n.Err != "" || of(n) == usual {
			continue
		}
		n.Differs = true
		if own := of(n); own.kept && usual.kept {
			found := differencesOf(n.Node, usual.values, own.values)
			room := max(0, maxDifferences-len(a.Differences))
			a.Differences = append(a.Differences, found[:min(room, len(found))]...)
			a.Unlisted += len(found) - min(room, len(found))
		} else {
			a.Unlisted++
		}
	}
	return a, usual.answer, true
}

// differencesOf are the fields in which two answers differ; an entry that one of them lacks counts once.
func differencesOf(node string, most, here []value) (all []AnswerDifference) {
	missing := "\x00" // the entry that one of them lacks, as a prefix of its fields
	for len(most) > 0 || len(here) > 0 {
		d := AnswerDifference{Node: node}
		switch {
		case len(here) == 0 || len(most) > 0 && most[0].path < here[0].path:
			d.Field, d.Most, most = most[0].path, most[0].text, most[1:]
		case len(most) == 0 || here[0].path < most[0].path:
			d.Field, d.Here, here = here[0].path, here[0].text, here[1:]
		default:
			d.Field, d.Most, d.Here = most[0].path, most[0].text, here[0].text
			most, here = most[1:], here[1:]
		}
		if d.Most == d.Here || strings.HasPrefix(d.Field, missing) {
			continue
		}
		if missing = "\x00"; d.Most+d.Here == present {
			missing = d.Field + "."
		}
		all = append(all, d)
	}
	return all
}

// valuesOf are the fields of a document that are compared, in the order of their paths.
func valuesOf(document any) []value {
	v := reflect.ValueOf(document)
	w := valueWalk{seen: map[string]int{}, own: ownTexts(v)}
	slices.SortFunc(w.own, func(a, b value) int { return len(b.text) - len(a.text) }) // one may be within another
	w.walk(v, "")
	slices.SortFunc(w.values, func(a, b value) int { return cmp.Or(strings.Compare(a.path, b.path), strings.Compare(a.text, b.text)) })
	return w.values
}

// ownTexts are what a node calls itself in an answer, with the names that stand for it.
func ownTexts(v reflect.Value) (own []value) {
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case f.Anonymous:
			own = append(own, ownTexts(v.Field(i))...)
		case f.Tag.Get(acrossTag) == ownText && strings.ContainsFunc(v.Field(i).String(), notLetter): // a word may be meant as such
			own = append(own, value{path: "<" + nameOf(f) + ">", text: v.Field(i).String()})
		}
	}
	return own
}

// nameOf is a field's name in JSON; empty where it has none there.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case !f.IsExported() || name == "-":
		return ""
	case name == "":
		return f.Name
	}
	return name
}

// valueWalk collects the fields of a document. Those that are zero are left out.
type valueWalk struct {
	values []value
	seen   map[string]int // entries of lists, by path
	own    []value
}

func (w *valueWalk) walk(v reflect.Value, path string) {
	if !v.IsValid() || v.IsZero() && v.Kind() != reflect.Struct {
		return
	}
	if text, ok := textOf(v); ok {
		if !v.IsZero() {
			w.values = append(w.values, value{path, w.neutral(text)})
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		w.walk(v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, tag := nameOf(f), f.Tag.Get(acrossTag)
			switch {
			case tag == skipped || tag == ownText:
			case f.Anonymous && f.Tag.Get("json") == "":
				w.walk(v.Field(i), path)
			case name != "":
				w.walk(v.Field(i), strings.TrimPrefix(path+"."+name, "."))
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			w.entry(v.Index(i), path, i)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			w.walk(v.MapIndex(key), fmt.Sprintf("%s[%v]", path, key))
		}
	default:
		w.values = append(w.values, value{path, w.neutral(fmt.Sprint(v.Interface()))})
	}
}

// entry adds an entry of a list, which is called by its key; a text is its own. Of entries with the same one
// the number of those before is added.
func (w *valueWalk) entry(v reflect.Value, path string, i int) {
	key := strings.Join(w.keys(v), " ")
	if text, ok := textOf(v); ok || v.Kind() == reflect.String {
		key = w.neutral(cmp.Or(text, v.String()))
	}
	path = fmt.Sprintf("%s[%s]", path, cmp.Or(key, fmt.Sprint(i)))
	if w.seen[path]++; w.seen[path] > 1 {
		path = fmt.Sprintf("%s~%d", path, w.seen[path])
	}
	w.values = append(w.values, value{path, present})
	if v.Kind() == reflect.Struct || v.Kind() == reflect.Pointer {
		w.walk(v, path)
	}
}

// keys are the texts of the fields that say which entry a struct is.
func (w *valueWalk) keys(v reflect.Value) (all []string) {
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case f.Anonymous:
			all = append(all, w.keys(v.Field(i))...)
		case f.Tag.Get(acrossTag) == keyText && !v.Field(i).IsZero():
			text, _ := textOf(v.Field(i))
			all = append(all, w.neutral(cmp.Or(text, fmt.Sprint(v.Field(i).Interface()))))
		}
	}
	return all
}

// textOf is what a type makes of itself in JSON; ok is false for those that do not.
func textOf(v reflect.Value) (text string, ok bool) {
	if v.Kind() == reflect.Pointer || !v.CanInterface() {
		return "", false
	}
	switch x := v.Interface().(type) {
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		return string(b), err == nil
	case json.Marshaler:
		b, err := x.MarshalJSON()
		return strings.Trim(string(b), `"`), err == nil
	}
	return "", false
}

// neutral is a sentence with the names that stand for what a node calls itself. A single word is a name or an address
// that the answer is about, such as an endpoint's: it is the same for the node that is called so and for the others.
func (w *valueWalk) neutral(text string) string {
	if !strings.Contains(text, " ") {
		return text
	}
	for _, own := range w.own {
		text = replaceWord(text, own.text, own.path)
	}
	return text
}

// replaceWord replaces a word wherever it is not a part of a longer one.
func replaceWord(text, word, by string) string {
	var out strings.Builder
	for {
		i := strings.Index(text, word)
		if i < 0 {
			break
		}
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		after, _ := utf8.DecodeRuneInString(text[i+len(word):])
		out.WriteString(text[:i])
		if ofWord(before) || ofWord(after) {
			out.WriteString(word)
		} else {
			out.WriteString(by)
		}
		text = text[i+len(word):]
	}
	out.WriteString(text)
	return out.String()
}

func notLetter(r rune) bool { return !unicode.IsLetter(r) }

func ofWord(r rune) bool { return r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r) }
