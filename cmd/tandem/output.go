// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
)

// The output of all verbs. A verb that shows something
//
//   - has an output: flags.register(c) adds -o table|wide|json|yaml and its
//     completion; what else the verb can print, such as plan's native, is named there;
//   - describes its result as a report, and ends with flags.print(cmd, report);
//   - writes tables and other text for people to the screen it is given;
//   - selects objects by a filter, and ends with an error that has the
//     right exit code (main.go): nil 0, any other 1, usageError and unsupportedError 2, differsError 3.

// The forms that every verb has, and formName of those that list Services: their names alone, a line each, as
// the verbs take them.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formYAML  = "yaml"
	formName  = "name"
)

// report is a result in all its forms.
type report struct {
	document any           // -o json and yaml, by its JSON tags
	text     func(*screen) // -o table, and wide when screen.wide
	own      map[string]func(io.Writer) error
}

// output is the -o of a verb.
type output struct {
	choice // of form
	form   string
	bare   bool
}

// register adds the flag. Of the verb's own forms a first one that starts with '*' is
// the default instead of table.
func (o *output) register(c *cobra.Command, own ...string) {
	o.form = formTable
	if len(own) > 0 && strings.HasPrefix(own[0], "*") {
		own = slices.Clone(own)
		own[0] = own[0][1:]
		o.form = own[0]
	}
	o.choice = choice{&o.form, "form", append([]string{formTable, formWide, formJSON, formYAML}, own...)}
	c.Flags().VarP(o, "output", "o", "one of "+strings.Join(o.of, ", "))
	complete(c, "output", o.of...)
	c.Flags().BoolVar(&o.bare, "no-headers", false, "tables without their first line")
}

// choice is the value of a flag that is one of some words. Help shows what they are.
type choice struct {
	word *string
	what string
	of   []string
}

func (c *choice) Set(word string) error {
	if !slices.Contains(c.of, word) {
		return fmt.Errorf("choose one of %s", strings.Join(c.of, ", "))
	}
	*c.word = word
	return nil
}

func (c *choice) String() string { return *c.word }

func (c *choice) Type() string { return c.what }

// print prints a result in the form that was chosen.
func (o *output) print(cmd *cobra.Command, r report) error {
	return o.printTo(newScreen(cmd.OutOrStdout()), r)
}

func (o *output) printTo(s *screen, r report) error {
	if c, ok := s.out.(*caught); ok {
		c.report = r
		return nil
	}
	switch write := r.own[o.form]; {
	case write != nil:
		return write(s.out)
	case o.form == formJSON:
		return writeJSON(s.out, versioned{r.document})
	case o.form == formYAML:
		return writeYAML(s.out, versioned{r.document})
	}
	s.wide, s.bare = o.form == formWide, o.bare
	r.text(s)
	return s.flush()
}

// apiVersion is that of the answers of -o json and yaml. Fields are added within it; another meaning takes another one.
const apiVersion = "tandem.dev/v1"

// versioned is an answer with its apiVersion, which comes first. A list is in items, so that the answer is an object, too.
// A document that has a version of its own keeps it.
type versioned struct{ document any }

func (v versioned) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(v.document)
	const first = `{"apiVersion":`
	switch {
	case err != nil || bytes.HasPrefix(text, []byte(first)):
		return text, err
	case bytes.HasPrefix(text, []byte("{}")):
		return []byte(first + `"` + apiVersion + `"}`), nil
	case bytes.HasPrefix(text, []byte("{")):
		return slices.Concat([]byte(first+`"`+apiVersion+`",`), text[1:]), nil
	}
	if bytes.Equal(text, []byte("null")) {
		text = []byte("[]")
	}
	return slices.Concat([]byte(first+`"`+apiVersion+`","items":`), text, []byte("}")), nil
}

// complete makes the shell complete a flag of a verb.
func complete(c *cobra.Command, flag string, words ...string) {
	// It fails only for flags that do not exist, or twice for the same.
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// screen is where text for people goes. It keeps the text until it is flushed.
type screen struct {
	out   io.Writer
	width int  // columns; 0 is no limit
	color bool // a terminal that shows colours
	tty   bool
	wide  bool // -o wide: all columns, nothing cut
	bare  bool // --no-headers
	text  bytes.Buffer
}

// newScreen describes a file or pipe. A terminal's width limits tables, COLUMNS
// overrides it; colours are for terminals only, and not with NO_COLOR
// (https://no-color.org).
func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	s.width, _ = strconv.Atoi(os.Getenv("COLUMNS"))
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return s
	}
	s.tty = true
	if width, _, err := term.GetSize(int(f.Fd())); err == nil {
		s.width = cmp.Or(s.width, width)
	}
	kind := os.Getenv("TERM")
	known := kind != "" && kind != "dumb" || runtime.GOOS == "windows" && os.Getenv("WT_SESSION") != ""
	s.color = known && os.Getenv("NO_COLOR") == ""
	return s
}

// printf adds text. What users, servers or kernels wrote cannot drive the terminal.
func (s *screen) printf(format string, args ...any) {
	s.text.WriteString(printable.Lines(fmt.Sprintf(format, args...)))
}

func (s *screen) flush() error {
	_, err := s.text.WriteTo(s.out)
	return err
}

// listed is how many entries of a list are shown to people; -o json has all.
const listed = 20

// first shows the first entries of a list, most at most, and how many more there are, in the words of rest.
func first[T any](s *screen, all []T, most int, rest string, show func(T)) {
	for _, x := range all[:min(most, len(all))] {
		show(x)
	}
	if more := len(all) - most; more > 0 {
		s.printf(rest+"\n", more)
	}
}

// The colours of states.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
)

// paint colours a text that is printable already.
func (s *screen) paint(color, text string) string {
	if !s.color || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// stateColor is the colour of the name of a state.
func stateColor(state string) string {
	switch strings.ToLower(state) {
	case "programmed", "healthy", "ok", "ready", "applied":
		return green
	case "partial", "note", "warn", "warning", "pending", "draining", "differs", "older version":
		return yellow
	case "failing", "fail", "failed", "not healthy", "no answer", "rejected", "lacking", "foreign":
		return red
	}
	return ""
}

// writeJSON writes a document as -o json shows it.
func writeJSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(printable.JSON(b.Bytes()))
	return err
}

// writeYAML writes a document as -o yaml shows it: the JSON form, with its keys in
// its order.
func writeYAML(out io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	n, err := yamlNode(d)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return err
	}
	_, err = io.WriteString(out, printable.Lines(b.String()))
	return err
}

// yamlNode reads the next value of a JSON document. Texts that do not print are quoted:
// in quotes the escapes of package printable are YAML's.
func yamlNode(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.MappingNode}
		if v == '[' {
			n.Kind = yaml.SequenceNode
		}
		for d.More() {
			c, err := yamlNode(d)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, c)
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		_, err := d.Token() // the end
		return n, err
	case string:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v}
		if printable.Text(v) != v {
			n.Style = yaml.DoubleQuotedStyle
		}
		return n, nil
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(token)}, nil
}

// namesOf is formName of a list.
func namesOf[T any](list []T, name func(*T) string) map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{formName: func(out io.Writer) error {
		var b strings.Builder
		for i := range list {
			b.WriteString(printable.Text(name(&list[i])) + "\n")
		}
		_, err := io.WriteString(out, b.String())
		return err
	}}
}

// patience is how long a verb may be silent.
const patience = 700 * time.Millisecond

// waiting says on stderr what is waited for where that takes a while, and every few seconds for how long by
// then, until done is called.
func waiting(cmd *cobra.Command, what string) (done func()) {
	return waitingFor(cmd, func() string { return what })
}

// waitingFor is waiting where what is waited for changes.
func waitingFor(cmd *cobra.Command, what func() string) (done func()) {
	ended, told := make(chan struct{}), make(chan struct{})
	begin := time.Now()
	go func() {
		defer close(told)
		for next := patience; ; next = 5 * time.Second {
			select {
			case <-ended:
				return
			case <-time.After(next):
				fmt.Fprintf(cmd.ErrOrStderr(), "%s, %.0f s so far\n", printable.Text(what()), time.Since(begin).Seconds())
			}
		}
	}()
	return func() {
		close(ended)
		<-told
	}
}

// printNotes prints notes on a configuration, or problems of the inputs, to stderr.
func printNotes[T fmt.Stringer](cmd *cobra.Command, notes []T) {
	for _, n := range notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "! %s\n", printable.Text(n.String()))
	}
}

// twoArgs accepts exactly FROM and TO.
func twoArgs(c *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usageError{fmt.Errorf("%s takes two arguments, FROM and TO, not %d", c.CommandPath(), len(args))}
	}
	return nil
}

// errDiffers means that the data plane is not as desired; the standard output has the differences.
const errDiffers = differsError("the data plane differs from the desired state")

// column is a column of a table.
type column struct {
	name  string
	wide  bool // shown with -o wide only
	keep  bool // never cut: addresses and states, which people copy or look for
	state bool // its words have colours, see stateColor
	spare bool // left out, the last first, where the screen is too narrow for all
}

// table is rows with a cell for each column. An empty cell of a later row means the
// same as above.
type table struct {
	columns []column
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// The narrowest width of a column, and what separates columns.
const (
	narrowest = 8
	gutter    = "  "
)

// table writes a table that fits the screen: without the wide columns, as few of the
// spare ones as it takes, and then with the broadest columns that may be cut made narrower. Wide ones are written in full.
func (s *screen) table(t table) {
	t = t.shown(func(i int) bool { return s.wide || !t.columns[i].wide })
	widths := t.widths()
	if s.width > 0 && !s.wide {
		for i := len(widths) - 1; i >= 0 && excess(widths, s.width) > 0; i-- {
			if t.columns[i].spare {
				t = t.shown(func(column int) bool { return column != i })
				widths = slices.Delete(widths, i, i+1)
			}
		}
		t.fit(widths, s.width)
	}
	head := make([]string, len(t.columns))
	for i, c := range t.columns {
		head[i] = c.name
	}
	if !s.bare {
		s.row(head, widths, func(int, string) string { return bold })
	}
	for _, r := range t.rows {
		s.row(r, widths, func(i int, cell string) string {
			if t.columns[i].state {
				return stateColor(cell)
			}
			return ""
		})
	}
}

// shown is the table with some of its columns, and with cells that are safe to print.
func (t table) shown(keep func(column int) bool) (out table) {
	for i, c := range t.columns {
		if keep(i) {
			out.columns = append(out.columns, c)
		}
	}
	out.rows = make([][]string, 0, len(t.rows))
	for _, r := range t.rows {
		cells := make([]string, 0, len(out.columns))
		for i, cell := range r {
			if keep(i) {
				cells = append(cells, printable.Text(cell))
			}
		}
		out.rows = append(out.rows, cells)
	}
	return out
}

func (t table) widths() []int {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c.name)
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	return widths
}

// excess is by how much columns of these widths are wider than a screen.
func excess(widths []int, limit int) int {
	total := (len(widths) - 1) * len(gutter)
	for _, w := range widths {
		total += w
	}
	return total - limit
}

// fit cuts the broadest column by one until all fit or none can be cut.
func (t table) fit(widths []int, limit int) {
	for over := excess(widths, limit); over > 0; over-- {
		widest := -1
		for i, w := range widths {
			if !t.columns[i].keep && w > narrowest && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

const blanks = "                                                                "

// row writes cells side by side, with nothing behind the last one that is not empty.
func (s *screen) row(cells []string, widths []int, color func(i int, cell string) string) {
	last := len(cells) - 1
	for last > 0 && cells[last] == "" {
		last--
	}
	for i, cell := range cells[:last+1] {
		if i > 0 {
			s.text.WriteString(gutter)
		}
		pad := max(widths[i]-utf8.RuneCountInString(cell), 0)
		s.text.WriteString(s.paint(color(i, cell), printable.Cut(cell, widths[i])))
		for i < last && pad > 0 {
			n := min(pad, len(blanks))
			s.text.WriteString(blanks[:n])
			pad -= n
		}
	}
	s.text.WriteString("\n")
}

// filter is a question.Filter by flags.
type filter struct {
	question.Filter
	states     []string // that objects of the verb can be in
	everywhere bool     // said: it is so without a namespace anyway
}

// register adds the flags -n, --name and, for a verb whose objects have states, --state.
func (f *filter) register(c *cobra.Command, states ...string) {
	fs := c.Flags()
	fs.StringVarP(&f.Namespace, "namespace", "n", "", "only this namespace")
	fs.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "all namespaces, which is the default")
	c.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	fs.StringVar(&f.Name, "name", "", "only these names; * and ? as in file names: 'web-*'")
	if f.states = states; len(states) > 0 {
		fs.StringSliceVar(&f.States, "state", nil, "only these states: "+strings.Join(states, ", "))
		complete(c, "state", states...)
	}
}

// check validates the pattern and the states.
func (f *filter) check() error {
	if err := f.Check(); err != nil {
		return usageError{fmt.Errorf("--name %s: %w", f.Name, err)}
	}
	for _, state := range f.States {
		if !slices.ContainsFunc(f.states, func(s string) bool { return strings.EqualFold(s, state) }) {
			return usageError{fmt.Errorf("--state %s: choose of %s", state, strings.Join(f.states, ", "))}
		}
	}
	return nil
}

// matches says how many of all objects a filter has selected; "" where it leaves out none.
func (f *filter) matches(n, all int) string {
	if f.All() {
		return ""
	}
	return fmt.Sprintf("%d of %s match\n", n, printable.Count(max(n, all), "Service"))
}

// repeat is --watch: a verb shows its result again and again.
type repeat struct {
	on    bool
	every time.Duration
}

// shortestInterval keeps a watch from being the load that it looks for.
const shortestInterval = 100 * time.Millisecond

func (r *repeat) register(c *cobra.Command) {
	c.Flags().BoolVarP(&r.on, "watch", "w", false, "refresh until interrupted")
	c.Flags().DurationVar(&r.every, "interval", 2*time.Second, "interval of --watch")
}

// run calls show once, or until ctx ends. On a terminal each output replaces the one
// before; elsewhere they follow each other. What cannot be shown at the moment is reported
// instead.
func (r *repeat) run(ctx context.Context, s *screen, show func(*screen) error) error {
	if !r.on {
		return show(s)
	}
	if r.every < shortestInterval {
		return usageError{fmt.Errorf("--interval %s: at least %s", r.every, shortestInterval)}
	}
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		if s.tty {
			s.text.WriteString("\x1b[H\x1b[2J")
		}
		err := show(s)
		if errors.As(err, new(usageError)) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			s.printf("%s: %v\n", time.Now().Format(time.TimeOnly), err)
		}
		if err := s.flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
