// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/strictyaml"
)

// The only version of the only kind there is.
const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// Decoded is the content of a file.
type Decoded struct {
	Assignments []config.Assignment // in the order of the file
	Problems    []config.Finding    // errors, for kube-proxy, too
	Lapses      []config.Finding    // errors that kube-proxy ignores
	Notes       []config.Finding    // fields that kube-proxy has removed
}

// Decode reads a document. Name is the file's, for error messages.
func Decode(name string, text []byte) Decoded {
	d := decoder{name: name, fields: map[string]config.Setting{}, sections: map[string]bool{"": true}}
	for _, s := range config.Settings() {
		if s.Path == "" {
			continue
		}
		d.fields[s.Path] = s
		for path := s.Path; path != ""; {
			path = path[:max(0, strings.LastIndexByte(path, '.'))]
			d.sections[path] = true
		}
	}
	d.document(text)
	return d.Decoded
}

type decoder struct {
	Decoded
	name     string
	fields   map[string]config.Setting // by path
	sections map[string]bool           // paths of what holds fields
}

func (d *decoder) problem(line int, path, format string, args ...any) {
	d.Problems = append(d.Problems, config.Finding{Where: d.where(line), Name: path, Text: fmt.Sprintf(format, args...)})
}

func (d *decoder) lapse(line int, path, format string, args ...any) {
	d.Lapses = append(d.Lapses, config.Finding{Where: d.where(line), Name: path, Text: fmt.Sprintf(format, args...)})
}

func (d *decoder) where(line int) string {
	if line <= 0 {
		return d.name
	}
	return d.name + ":" + strconv.Itoa(line)
}

func (d *decoder) document(content []byte) {
	content, line, why := strictyaml.Text(bytes.Clone(content))
	if why != "" {
		d.problem(line, "", "%s", why)
		return
	}
	n, after, bad := strictyaml.Parse(content)
	switch {
	case bad != nil:
		d.problem(bad.Line+1, "", "is not valid YAML: %s", bad.Text)
		return
	case n == nil:
		d.problem(0, "", "is empty: it needs at least apiVersion: %s and kind: %s", apiVersion, kind)
		return
	case after >= 0:
		d.lapse(after+1, "", "a second document: only the first is read")
	}
	if n = strictyaml.Resolve(n); n.Kind != yaml.MappingNode {
		d.problem(n.Line, "", "%s, must be a %s", strictyaml.Describe(n), kind)
		return
	}
	if d.header(n) {
		d.section(n, "")
	}
}

// header checks apiVersion and kind.
func (d *decoder) header(n *yaml.Node) bool {
	version, what := strictyaml.Get(n, "apiVersion"), strictyaml.Get(n, "kind")
	switch {
	case text(what) == "ConfigMap":
		d.problem(what.Line, "kind", "is a ConfigMap: use the file in it (data, config.conf)")
		return false
	case what == nil || text(what) != kind:
		d.problem(lineOf(what, n), "kind", "must be %s", kind)
	}
	if version == nil || text(version) != apiVersion {
		d.problem(lineOf(version, n), "apiVersion", "must be %s", apiVersion)
	}
	return true
}

// section reads the fields of an object.
func (d *decoder) section(n *yaml.Node, path string) {
	for e := range strictyaml.Entries(n) {
		name := e.Key.Value
		if e.First != nil {
			d.lapse(e.Key.Line, strictyaml.Join(path, name), "duplicate key, first in line %d: the last one is used", e.First.Line)
		}
		if path != "" || name != "apiVersion" && name != "kind" { // else it was read by header
			d.entry(e.Key, e.Value, path, strictyaml.Join(path, name))
		}
	}
}

func (d *decoder) entry(key, v *yaml.Node, parent, path string) {
	s, known := d.fields[path]
	switch {
	case strings.Contains(key.Value, ".") || key.Kind != yaml.ScalarNode || !known && !d.sections[path] && !retired(path):
		d.lapse(key.Line, printable(path), "unknown field%s", d.hint(parent, key.Value))
	case retired(path):
		d.Notes = append(d.Notes, config.Finding{Where: d.where(key.Line), Name: path, Text: "ignored: kube-proxy has removed this field"})
	case known:
		d.field(key.Line, v, &s)
	case strictyaml.IsNull(v):
	case v.Kind != yaml.MappingNode:
		d.problem(v.Line, path, "%s, must be an object", strictyaml.Describe(v))
	default:
		d.section(v, path)
	}
}

// field turns one field into an assignment, unless it is not set.
func (d *decoder) field(line int, v *yaml.Node, s *config.Setting) {
	if strictyaml.IsNull(v) {
		return
	}
	k := s.Value(new(config.Config)).Kind
	words, fault := valueWords(v, k)
	if fault != nil {
		d.problem(fault.line, s.Path, "%s", fault.text)
		return
	}
	unset := k.Many() && len(words) == 0 || !k.Many() && k.Zero(words[0])
	if s.ZeroCounts || !unset {
		d.Assignments = append(d.Assignments, config.Assignment{Name: s.Path, Words: words, Where: d.where(line)})
	}
}

// retired reports whether kube-proxy has removed a field, which configurations of
// old clusters may still have.
func retired(path string) bool {
	return path == "udpIdleTimeout" || path == "resourceContainer"
}

// hint suggests the field that was meant.
func (d *decoder) hint(parent, name string) string {
	var names []string
	add := func(path string) {
		if up, last := split(path); up == parent && last != "" {
			names = append(names, last)
		}
	}
	for path := range d.fields {
		add(path)
	}
	for path := range d.sections {
		add(path)
	}
	if near := config.Nearest(name, names); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

// fault describes an invalid value.
type fault struct {
	line int // from 1
	text string
}

// valueWords returns the words of a value of a kind.
func valueWords(n *yaml.Node, k config.Kind) ([]string, *fault) {
	switch {
	case !k.Many():
		word, bad := scalar(n, k)
		return []string{word}, bad
	case k == config.Map:
		return readMap(n, k)
	case n.Kind != yaml.SequenceNode:
		return nil, mistyped(n, k)
	}
	words := []string{}
	for _, item := range n.Content {
		item = strictyaml.Resolve(item)
		word, bad := "", (*fault)(nil)
		if k == config.Modules {
			word, bad = readModule(item)
		} else {
			word, bad = scalar(item, config.Text)
		}
		if bad != nil {
			return nil, bad
		}
		words = append(words, word)
	}
	return words, nil
}

func readMap(n *yaml.Node, k config.Kind) ([]string, *fault) {
	if n.Kind != yaml.MappingNode {
		return nil, mistyped(n, k)
	}
	words := []string{}
	for e := range strictyaml.Entries(n) {
		word, bad := scalar(e.Value, config.Bool)
		if bad == nil && (e.Key.Kind != yaml.ScalarNode || e.First != nil) {
			bad = &fault{e.Key.Line, fmt.Sprintf("%s: duplicate key, or not a name", printable(e.Key.Value))}
		}
		if bad != nil {
			return nil, bad
		}
		words = append(words, e.Key.Value+"="+word)
	}
	slices.Sort(words)
	return words, nil
}

// readModule reads {filePattern: reflector*, verbosity: 6}.
func readModule(n *yaml.Node) (string, *fault) {
	if n.Kind != yaml.MappingNode {
		return "", mistyped(n, config.Modules)
	}
	pattern, level := "", "0"
	for e := range strictyaml.Entries(n) {
		var bad *fault
		switch e.Key.Value {
		case "filePattern":
			pattern, bad = scalar(e.Value, config.Text)
		case "verbosity":
			level, bad = scalar(e.Value, config.Int)
		default:
			bad = &fault{e.Key.Line, "unknown field " + printable(e.Key.Value)}
		}
		if bad != nil {
			return "", bad
		}
	}
	return pattern + "=" + level, nil
}

// scalar returns the one word of a value. Types are as strict as kube-proxy's:
// a text that looks like a number must be in quotes. Words are of one form for
// one value, whatever the notation.
func scalar(n *yaml.Node, k config.Kind) (string, *fault) {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode {
		return "", mistyped(n, k)
	}
	switch k {
	case config.Bool:
		var b bool // plain yes, no, on and off are YAML's older words for it
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 && n.Decode(&b) == nil {
			return strconv.FormatBool(b), nil
		}
	case config.Int:
		var i int64
		if tag == "!!int" && n.Decode(&i) == nil {
			return strconv.FormatInt(i, 10), nil
		}
	case config.Number:
		var f float64
		if (tag == "!!int" || tag == "!!float") && n.Decode(&f) == nil {
			return strconv.FormatFloat(f, 'g', -1, 64), nil
		}
	case config.Interval:
		var ns int64
		if tag == "!!int" && n.Decode(&ns) == nil {
			return strconv.FormatInt(ns, 10) + "ns", nil
		}
		if tag == "!!str" {
			return n.Value, nil
		}
	case config.Quantity:
		if tag == "!!str" || tag == "!!int" || tag == "!!float" {
			return n.Value, nil
		}
	default: // texts, and durations, which are texts in JSON
		if tag == "!!str" || tag == "!!timestamp" {
			return n.Value, nil
		}
	}
	return "", mistyped(n, k)
}

func mistyped(n *yaml.Node, k config.Kind) *fault {
	text := fmt.Sprintf("%s, must be %s", strictyaml.Describe(n), k.Phrase())
	if n.Kind == yaml.ScalarNode {
		switch {
		case k == config.Duration && n.ShortTag() == "!!int":
			text = fmt.Sprintf("%s has no unit: write %ss for seconds", printable(n.Value), n.Value)
		case k == config.Text:
			text += fmt.Sprintf(": put it in quotes, %q", n.Value)
		}
	}
	return &fault{n.Line, text}
}

// text returns the value of a string, or "".
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return ""
	}
	return n.Value
}

func lineOf(n, parent *yaml.Node) int {
	if n == nil {
		return parent.Line
	}
	return n.Line
}

// printable returns a name for a message, shortened.
func printable(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	return strictyaml.Printable(s)
}

func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)], path[i+1:]
}

// limit bounds a file: what fits a ConfigMap (1 MiB) fits.
const limit = 1 << 20

// Read reads a file as a whole. Errors name it.
func Read(path string) ([]byte, error) {
	// A pipe would wait for a writer: look before opening.
	info, err := os.Stat(path)
	if err != nil {
		return nil, explain(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("configuration file %s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, explain(path, err)
	}
	defer f.Close()
	return ReadFrom(f, path)
}

// ReadFrom is Read for an open file.
func ReadFrom(f io.Reader, path string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, explain(path, err)
	}
	if len(text) > limit {
		return nil, fmt.Errorf("configuration file %s is larger than 1 MiB", path)
	}
	return text, nil
}

func explain(path string, err error) error {
	if perr, is := errors.AsType[*os.PathError](err); is {
		err = perr.Err
	}
	return fmt.Errorf("configuration file %s: %w", path, err)
}

// Exposed returns a note for a world-writable file: any user who writes it controls a
// privileged process. Windows has no such bits.
func Exposed(path string) (notes []config.Finding) {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o002 == 0 {
		return nil
	}
	return []config.Finding{{Where: path, Text: "world-writable: any user of this machine can take over the proxy; run chmod o-w " + strings.TrimSpace(path)}}
}

// Render writes a configuration as a KubeProxyConfiguration with every field,
// which kube-proxy reads as well. Explained puts before each field what it does.
// The result is YAML with JSON's scalars.
func Render(c *config.Config, explained bool) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "apiVersion: %s\nkind: %s\n", apiVersion, kind)
	var open []string // the sections that the last field was in
	preset := config.Default()
	for _, s := range config.Settings() {
		if s.Path == "" {
			continue
		}
		steps := strings.Split(s.Path, ".")
		up := steps[:len(steps)-1]
		shared := 0
		for shared < min(len(open), len(up)) && open[shared] == up[shared] {
			shared++
		}
		if explained && len(up) == 0 {
			out.WriteByte('\n')
		}
		for i := shared; i < len(up); i++ {
			if explained && i == 0 {
				out.WriteByte('\n')
			}
			fmt.Fprintf(&out, "%s%s:\n", indent(i), up[i])
		}
		open = up
		from := c
		if s.Counts != nil && !s.Counts(c.Mode) {
			from = &preset
		}
		if explained {
			comment(&out, &s, len(up))
		}
		fmt.Fprintf(&out, "%s%s: %s\n", indent(len(up)), steps[len(up)], inline(s.Plain(from)))
	}
	return out.Bytes()
}

func indent(depth int) string { return strings.Repeat("  ", depth) }

// inline writes a value in one line.
func inline(v any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // plain values only
	}
	return bytes.TrimSpace(out.Bytes())
}

// comment writes what a field does, and how else it is set.
func comment(out *bytes.Buffer, s *config.Setting, depth int) {
	text := s.Doc
	if s.Unused != "" {
		text += " Tandem accepts it and does nothing with it: " + s.Unused + "."
	}
	if s.Flag != "" {
		text += " Flag: --" + s.Flag + "."
	}
	if s.Restart != "" {
		text += " A change needs a restart."
	}
	for _, line := range Wrap(text, 78-2*depth) {
		fmt.Fprintf(out, "%s# %s\n", indent(depth), line)
	}
}

// Wrap breaks a text into lines of at most so many bytes, unless a word is
// longer.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

const (
	quietTime = 20 * time.Millisecond // no event for so long ends a burst
	burstTime = 10 * quietTime        // and no burst is longer
	scanTime  = 10 * time.Second      // between looks without an event, should events be lost
)

// Watch calls changed with the new content whenever the file's content differs from
// text, and then from that of the last call. It runs until ctx ends. A file that is
// absent or cannot be read is logged and is no change; neither is an empty one, which is
// being written.
func Watch(ctx context.Context, path string, text []byte, log *slog.Logger, changed func([]byte)) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("file notifications unavailable; scanning for changes", "file", path, "err", err)
		w = &fsnotify.Watcher{} // its channels are nil: they are never ready
	} else {
		defer w.Close()
	}
	last := sha256.Sum256(text)
	logged := "" // why the file could not be read the last time
	for {
		if err == nil {
			follow(w, path)
		}
		// A look after the folder is followed: what changed before is seen, too.
		now, unread := Read(path)
		logged = logOnce(log, unread, logged)
		if sum := sha256.Sum256(now); len(bytes.TrimSpace(now)) > 0 && sum != last {
			last = sum
			changed(now)
			continue
		}
		if !wait(ctx, w) {
			return
		}
	}
}

// logOnce logs why a file cannot be read, unless that was logged before, and returns
// what has been logged.
func logOnce(log *slog.Logger, err error, logged string) string {
	switch {
	case err == nil:
		return ""
	case err.Error() != logged:
		log.Warn("reading configuration failed; keeping the current one", "err", err)
	}
	return err.Error()
}

// follow watches the folder of the file: a file that is replaced is another one,
// and so is what the link ..data of a mounted ConfigMap points to. The folder
// may have been replaced itself; to add it again costs nothing.
func follow(w *fsnotify.Watcher, path string) {
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target)) // where a link leads
	}
	for _, old := range w.WatchList() {
		_ = w.Remove(old)
	}
	for _, dir := range dirs {
		_ = w.Add(dir) // the periodic scan finds what this misses
	}
}

// wait returns true when the file may have changed, false when ctx ends.
func wait(ctx context.Context, w *fsnotify.Watcher) bool {
	timer := time.NewTimer(scanTime)
	defer timer.Stop()
	var end time.Time // of the burst; zero before one
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.Events:
		case <-w.Errors: // most likely events were lost
		}
		if end.IsZero() {
			end = time.Now().Add(burstTime)
		}
		timer.Reset(min(quietTime, time.Until(end)))
	}
}
