// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// The output of all verbs. A verb that shows something
//
//   - has an output: flags.register(c) adds -o table|wide|json|yaml and its
//     completion; what else the verb can print, such as plan's native, is named there;
//   - describes its result as a report, and ends with flags.print(cmd, report);
//   - writes tables (table.go) and other text for people to the screen it is given;
//   - selects objects by a filter (filter.go), and ends with an error that has the
//     right exit code (usage.go): nil 0, any other 1, usageError and unsupportedError 2, differsError 3.

// The forms that every verb has.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formYAML  = "yaml"
)

// report is a result in all its forms.
type report struct {
	document any                 // -o json and yaml, by its JSON tags
	text     func(*screen) error // -o table, and wide when screen.wide
	own      map[string]func(io.Writer) error
}

// output is the -o of a verb.
type output struct {
	form  string
	forms []string
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
	o.forms = append([]string{formTable, formWide, formJSON, formYAML}, own...)
	c.Flags().VarP(o, "output", "o", "one of "+strings.Join(o.forms, ", "))
	complete(c, "output", o.forms...)
}

func (o *output) Set(form string) error {
	if !slices.Contains(o.forms, form) {
		return fmt.Errorf("choose one of %s", strings.Join(o.forms, ", "))
	}
	o.form = form
	return nil
}

func (o *output) String() string { return o.form }

func (o *output) Type() string { return "form" }

// print prints a result in the form that was chosen.
func (o *output) print(cmd *cobra.Command, r report) error {
	return o.printTo(newScreen(cmd.OutOrStdout()), r)
}

func (o *output) printTo(s *screen, r report) error {
	switch write := r.own[o.form]; {
	case write != nil:
		return write(s.out)
	case o.form == formJSON:
		return writeJSON(s.out, r.document)
	case o.form == formYAML:
		return writeYAML(s.out, r.document)
	}
	s.wide = o.form == formWide
	if err := r.text(s); err != nil {
		return err
	}
	return s.flush()
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
	case "partial", "note", "warn", "warning", "pending", "draining":
		return yellow
	case "failing", "fail", "failed", "not healthy", "rejected", "lacking", "foreign":
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

// printNotes prints the notes on a configuration to stderr.
func printNotes(cmd *cobra.Command, notes []config.Finding) {
	for _, n := range notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "! %s\n", printable.Text(n.String()))
	}
}

// printProblems prints the problems of the inputs to stderr.
func printProblems(cmd *cobra.Command, problems []model.Problem) {
	for _, p := range problems {
		fmt.Fprintf(cmd.ErrOrStderr(), "! %s\n", printable.Text(p.String()))
	}
}

// document is an answer of the running tandem that knows its form for people.
type document interface{ Write(io.Writer) error }

// reportOf is the report of a document. Its text is printable.
func reportOf(d document) report {
	return report{document: d, text: func(s *screen) error { return d.Write(&s.text) }}
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
