// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/manual"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/connectivity"
	"github.com/tandem-proxy/tandem/windows/contract"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// The pages of the manual that are made of the program.
const pages = "../../core/manual/pages/"

// Each reference is what the program has. After a change of flags, commands, metrics or
// answers: make manual
func TestReferences(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the pages are written on Linux: other systems have other metrics of the process")
	}
	for name, text := range map[string]string{
		"configuration": configurationPage(), "commands": commandsPage(), "metrics": metricsPage(t), "json": answersPage(t),
	} {
		file := pages + name + ".md"
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if have, err := os.ReadFile(file); err != nil || string(have) != text {
			t.Errorf("%s is not what the program has: make manual (%v)", file, err)
		}
	}
}

// cell makes a text fit a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// coded is a text as code; nothing of nothing.
func coded(text string) string {
	if text == "" {
		return ""
	}
	return "`" + cell(text) + "`"
}

func configurationPage() string {
	var b strings.Builder
	b.WriteString(`# Configuration

What can be set: by a field of the configuration file (KubeProxyConfiguration v1alpha1, as kube-proxy's), by a flag of ` + "`tandem run`" + `, or by both. "live" is
applied by a running tandem when the file changes, "restart" needs one, "tried" is applied if the new value works, "unused" is accepted for kube-proxy's sake. ` +
		"`tandem config explain NAME`" + `
says why, ` + "`tandem config defaults`" + ` prints a file with all fields, ` + "`tandem config check FILE`" + ` finds mistakes. With ` + "`--config`" + ` most flags are ignored, as in kube-proxy.
This page is made from the table that the program reads.
`)
	seen := map[string]bool{}
	for _, g := range config.Groups() {
		fmt.Fprintf(&b, "\n## %s\n\n| field | flag | default | change | meaning |\n|---|---|---|---|---|\n", g.Title)
		for i := range g.Settings {
			d := describe(&g.Settings[i])
			seen[g.Settings[i].Flag] = true
			change := d.Change
			if g.Settings[i].Tried() {
				change = "tried"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", coded(d.Field), coded(d.Flag), coded(d.Default), change, cell(d.Doc))
		}
	}
	b.WriteString("\n## Flags without a field\n\n| flag | default | meaning |\n|---|---|---|\n")
	newRun().Flags().VisitAll(func(f *pflag.Flag) {
		if !seen[f.Name] && !seen[f.Shorthand] {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", coded("--"+f.Name), coded(f.DefValue), cell(f.Usage))
		}
	})
	return b.String()
}

// visible returns the commands that help shows, each after its parent.
func visible(c *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(every(c), func(c *cobra.Command) bool { return c.Hidden })
}

func every(c *cobra.Command) (all []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.Name() != "help" && sub.Name() != "completion" {
			all = append(append(all, sub), every(sub)...)
		}
	}
	return all
}

func commandsPage() string {
	var b strings.Builder
	b.WriteString(`# Commands

All verbs with their own flags. Verbs that read a configuration take the flags of ` + "`tandem run`" + `, too, which [Configuration](configuration.md) lists. Exit codes: 0 success;
1 failure; 2 usage error; 3 difference found or change pending. This page is made from the program.
`)
	for _, c := range visible(newRoot()) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```text\n%s\n```\n", c.CommandPath(), paragraphs(cmp.Or(c.Long, c.Short+".")), c.UseLine())
		var rows []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || ofRun(f) || c.Name() == "run" || f.Name == "help" {
				return
			}
			name := coded("--" + f.Name)
			if f.Shorthand != "" {
				name = coded("-"+f.Shorthand) + ", " + name
			}
			rows = append(rows, fmt.Sprintf("| %s | %s | %s |\n", name, coded(f.DefValue), cell(f.Usage)))
		})
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			rows = append(rows, fmt.Sprintf("| %s | %s | %s |\n", coded("--"+f.Name), coded(f.DefValue), cell(f.Usage)))
		})
		if len(rows) > 0 {
			fmt.Fprintf(&b, "\n| flag | default | meaning |\n|---|---|---|\n%s", strings.Join(slices.Compact(slices.Sorted(slices.Values(rows))), ""))
		}
		if c.Example != "" {
			var lines []string
			for line := range strings.Lines(c.Example) {
				lines = append(lines, strings.TrimPrefix(strings.TrimRight(line, "\n"), "  "))
			}
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", strings.Join(lines, "\n"))
		}
	}
	return b.String()
}

// family is a metric as /metrics describes it.
type family struct{ name, kind, help, labels string }

// families are all metrics that core/metrics has, in any mode, without those of Go.
func families(t *testing.T) []family {
	t.Helper()
	found := map[string]*family{}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace", "kernelspace"} {
		packets := func() dataplane.Packets {
			p := dataplane.Packets{Balancers: map[dataplane.BalancerFailure]uint64{}}
			for _, verb := range []string{"create", "delete", "update"} {
				p.Balancers[dataplane.BalancerFailure{Verb: verb, Type: "clusterip", Error: "x"}] = 1
			}
			return p
		}
		m := metrics.New(metrics.Sources{
			Version: "test", Status: func() engine.Status { return engine.Status{} }, Packets: packets,
			Ages:     func() map[string]float64 { return map[string]float64{"services": 0} },
			Failover: func() (metrics.Failover, bool) { return metrics.Failover{}, true },
			Relays:   func() (relay.Stats, bool) { return relay.Stats{}, true },
		})
		m.Mode(mode)
		m.Services(1, slog.New(slog.DiscardHandler), func() []metrics.ServiceConnections {
			return []metrics.ServiceConnections{{Service: "a/b", New: 1}}
		})
		m.Problem(model.Problem{})
		m.Probed("healthz", 200)
		m.Probed("livez", 200)
		m.EventWritten("written")
		m.Synced(engine.Sync{Full: true, Ports: [2]int{1, 1}, Waiting: time.Millisecond})
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		var last *family
		for line := range strings.Lines(w.Body.String()) {
			words := strings.Fields(line)
			switch {
			case len(words) > 3 && words[1] == "HELP":
				last = cmp.Or(found[words[2]], &family{name: words[2], help: strings.Join(words[3:], " ")})
				found[words[2]] = last
			case len(words) == 4 && words[1] == "TYPE":
				last.kind = words[3]
			default:
				if l := regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(line, -1); len(l) > 0 && last.labels == "" {
					var names []string
					for _, x := range l {
						if x[1] != "le" {
							names = append(names, x[1])
						}
					}
					last.labels = strings.Join(names, ", ")
				}
			}
		}
	}
	var all []family
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "promhttp_") {
			all = append(all, *found[name])
		}
	}
	return all
}

// unit is that of a metric, by Prometheus' rules of names.
func (f family) unit() string {
	base := strings.TrimSuffix(f.name, "_total")
	for _, u := range []string{"seconds", "bytes"} {
		if strings.HasSuffix(base, "_"+u) {
			return u
		}
	}
	if strings.HasSuffix(f.name, "_info") || strings.HasSuffix(f.name, "_enabled") {
		return "1"
	}
	return "number"
}

// query is one that shows the metric on a dashboard.
func (f family) query() string {
	by := "instance"
	if labels := strings.Split(f.labels, ", "); f.labels != "" && len(labels) < 4 {
		by += ", " + f.labels
	}
	switch {
	case strings.HasSuffix(f.name, "timestamp_seconds"), f.name == "process_start_time_seconds":
		return fmt.Sprintf("time() - max by (%s) (%s)", by, f.name)
	case f.kind == "histogram":
		return fmt.Sprintf("histogram_quantile(0.99, sum by (%s, le) (rate(%s_bucket[5m])))", by, f.name)
	case f.kind == "counter":
		return fmt.Sprintf("sum by (%s) (rate(%s[5m]))", by, f.name)
	case f.unit() == "1":
		return "max by (instance) (" + f.name + ")"
	}
	return fmt.Sprintf("max by (%s) (%s)", by, f.name)
}

func metricsPage(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# Metrics

What ` + "`/metrics`" + ` of the metrics address serves (` + "`--metrics-bind-address`" + `, 127.0.0.1:10249). Names that kube-proxy has mean what they mean there; the rest begins with
` + "`tandem_`" + `. Those of the Go runtime (` + "`go_*`" + `) are client_golang's. The number of series does not grow with the cluster, but for
` + "`tandem_service_connections_total`" + `, as ` + "`--metrics-services`" + ` allows. [Counters and metrics](monitoring.md) says which are worth an alert. This page is made from the registry.
`)
	for _, part := range []struct{ title, prefix string }{{"Of Tandem", "tandem_"}, {"Of kube-proxy", "kubeproxy_"}, {"Of the process", ""}} {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | type | unit | labels | meaning | query |\n|---|---|---|---|---|---|\n", part.title)
		for _, f := range families(t) {
			other := !strings.HasPrefix(f.name, "tandem_") && !strings.HasPrefix(f.name, "kubeproxy_")
			if strings.HasPrefix(f.name, part.prefix) && (part.prefix != "" || other) {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | `%s` |\n", f.name, f.kind, f.unit(), f.labels, cell(f.help), f.query())
			}
		}
	}
	return b.String()
}

// answers are the documents of -o json, by verb.
func answers() map[string]any {
	return map[string]any{
		"tandem status": question.Status{}, "tandem services": question.Services{}, "tandem explain": question.Explanation{}, "tandem trace": question.Trace{},
		"tandem drift": question.Drift{}, "tandem history": history.Document{}, "tandem top": question.Top{}, "tandem monitor": question.Monitor{}, "tandem plan": question.Plan{},
		"tandem plan --against-running": question.Preview{}, "tandem replay": question.Plan{}, "tandem doctor": []diagnosis.Check{},
		"tandem switch": platform.Switched{}, "tandem cleanup": cleanupDocument{}, "tandem version": build{}, "tandem config check": configDocument{},
		"tandem config explain": []settingDocument{}, "tandem hns dump": hns.Dump{}, "tandem hns diff": hns.Diff{}, "tandem kubectl status": []question.Node{},
		"tandem kubectl diff": []question.NodeDifference{}, "tandem kubectl VERB --all-nodes": question.Across{}, "tandem kubectl top --all-nodes": question.TopNodes{},
		"tandem test connectivity": connectivity.Report{}, "tandem test disrupt": connectivity.Disruption{},
		"tandem test hns": contract.Report{},
	}
}

func answersPage(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# JSON answers

Verbs with ` + "`-o json`" + ` (and ` + "`-o yaml`" + `, the same fields) print one document each; ` + "`/status`" + ` of the metrics address answers with that of ` + "`tandem status`" + `. A name with
` + "`[]`" + ` is of each element of a list, with ` + "`{}`" + ` of each value of an object whose keys are names.

Promise: fields are added, not renamed and not given another meaning, within the minors that [versions](../../../.github/VERSIONS.md#what-is-stable) names; readers ignore fields that they do not
know. A field that is empty may be absent. Each document begins with ` + "`apiVersion: " + apiVersion + "`" + `, which is not in the tables; a change that breaks readers would give it another one. Where an answer
is a list its elements are in ` + "`items`" + `. Only ` + "`/status`" + ` and ` + "`/query`" + ` have no ` + "`apiVersion`" + `, and the report of ` + "`tandem test hns`" + ` has one of its own. Verbs of ` + "`kubectl tandem`" + ` print the same documents
about a node, plan that of ` + "`--against-running`" + `. This page is made from the types that the program encodes.
`)
	docs := comments(t)
	all := answers()
	for _, verb := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "\n## %s -o json\n\n| field | type | meaning |\n|---|---|---|\n", verb)
		of, path := reflect.TypeOf(all[verb]), ""
		if of.Kind() == reflect.Slice {
			path = "items"
		}
		for _, f := range fields(of, path, nil, docs) {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f[0], f[1], cell(f[2]))
		}
	}
	return b.String()
}

// fields lists what encoding/json makes of a type: path, kind and comment.
func fields(t reflect.Type, path string, within []reflect.Type, docs map[string]string) (all [][3]string) {
	switch {
	case t.Kind() == reflect.Pointer:
		return fields(t.Elem(), path, within, docs)
	case t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()), t.Implements(reflect.TypeFor[interface{ MarshalJSON() ([]byte, error) }]()):
		return nil
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return fields(t.Elem(), path+"[]", within, docs)
	case t.Kind() == reflect.Map:
		return fields(t.Elem(), path+"{}", within, docs)
	case t.Kind() != reflect.Struct || slices.Contains(within, t):
		return nil
	}
	within = append(slices.Clone(within), t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if f.Anonymous && name == "" {
			all = append(all, fields(inner, path, within, docs)...)
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		at := strings.TrimPrefix(path+"."+cmp.Or(name, f.Name), ".")
		about := strings.ReplaceAll(docs[t.String()+"."+f.Name], "\n", " ")
		all = append(all, [3]string{at, kindOf(inner), about})
		all = append(all, fields(inner, at, within, docs)...)
	}
	return all
}

func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t.Kind() == reflect.Pointer:
		return kindOf(t.Elem())
	case t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()):
		return "text"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "text"
		}
		return "list"
	case reflect.Map, reflect.Struct, reflect.Interface:
		return "object"
	}
	return "number"
}

// comments are those of the fields of all documents' types, by PACKAGE.TYPE.FIELD.
func comments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range []string{".", "../../core/question", "../../core/history", "../../core/model", "../../core/oracle", "../../core/diagnosis", "../../core/dataplane", "../../core/snapshot", "../../platform", "../../platform/connectivity", "../../windows/hns", "../../windows/contract"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok {
					if s, ok := spec.Type.(*ast.StructType); ok {
						for _, f := range s.Fields.List {
							for _, id := range f.Names {
								all[file.Name.Name+"."+spec.Name.Name+"."+id.Name] = strings.TrimSpace(cmp.Or(f.Comment.Text(), f.Doc.Text()))
							}
						}
					}
				}
				return true
			})
		}
	}
	return all
}

// Each verb with -o has its fields on the page, and no other is there.
func TestAnswersAreOfVerbs(t *testing.T) {
	have := answers()
	delete(have, "tandem plan --against-running")
	delete(have, "tandem kubectl VERB --all-nodes")
	delete(have, "tandem kubectl top --all-nodes")
	asked := answers()
	for _, c := range every(newRoot()) {
		if c.Flags().Lookup("output") == nil {
			continue
		}
		if _, there := asked["tandem "+c.Name()]; there && c.Flags().Lookup("node") != nil && c.Parent().Name() == "kubectl" && c.Name() != "status" {
			continue // the page says that it is the same document
		}
		if _, ok := have[c.CommandPath()]; !ok {
			t.Errorf("the answer of %s is not in the manual", c.CommandPath())
		}
		delete(have, c.CommandPath())
	}
	for verb := range have {
		t.Errorf("%s has no -o", verb)
	}
	if p := manual.New().Find("json"); p == nil {
		t.Error("the manual has no page json")
	}
}

// commandLine is a command of tandem in a page.
type commandLine struct {
	page, text string
	args       []string
	run        bool // in a block that is marked: ```sh run
}

// commandLines finds the commands of tandem in blocks of code, and in code within lines
// where it begins with tandem.
func commandLines(page, source string) (all []commandLine) {
	marked, fenced, usage := false, false, false
	for line := range strings.Lines(source) {
		text := strings.TrimSpace(line)
		if info, ok := strings.CutPrefix(text, "```"); ok {
			fenced = !fenced
			marked, usage = fenced && info == "sh run", fenced && info == "text"
			continue
		}
		if usage {
			continue
		}
		if !fenced && !strings.HasPrefix(line, "    ") {
			for _, span := range regexp.MustCompile("`(tandem [^`]+)`").FindAllStringSubmatch(text, -1) {
				if args := words(span[1]); len(args) > 1 {
					all = append(all, commandLine{page, span[1], args[1:], false})
				}
			}
			continue
		}
		for _, part := range regexp.MustCompile(`&&|\|`).Split(strings.TrimPrefix(text, "$ "), -1) {
			args := words(strings.TrimPrefix(strings.TrimSpace(part), "bin/"))
			if len(args) > 1 && args[0] == "tandem" && args[1] != "VERSION" {
				all = append(all, commandLine{page, text, args[1:], marked})
			}
		}
	}
	return all
}

// words splits a line as a shell does, until a comment or a redirection.
func words(line string) (all []string) {
	line, _, _ = strings.Cut(line+" ", " #")
	line, _, _ = strings.Cut(line, " > ")
	for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		all = append(all, strings.Trim(w, `'"`))
	}
	return all
}

// parses says why a command line is none of tandem's.
func parses(args []string) error {
	c, rest, err := newRoot().Find(args)
	if err != nil || c.Parent() == nil {
		return fmt.Errorf("no such verb: %v", err)
	}
	if c.DisableFlagParsing {
		return nil
	}
	if err := c.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil || len(rest) == 0 { // the verb alone is its name
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}

// firstYAML is the first manifest of a page, with which its commands are run.
func firstYAML(source string) string {
	_, rest, _ := strings.Cut(source, "```yaml\n")
	text, _, _ := strings.Cut(rest, "```")
	return text
}

// foreign are flags of other programs that pages name.
const foreign = " set query network-plugin cleanup detect-local-mode takeover privileged noflush pod-network-cidr kube-proxy-arg skip-phases overrides service-cluster-ip-range version allow-untrusted "

// Every command in the manual is one of tandem's; every flag, metric, verb and type of the SELinux
// policy in it is there.
func TestManualNamesWhatIsThere(t *testing.T) {
	flags := map[string]bool{}
	for _, c := range append(every(newRoot()), newRoot()) {
		for _, fs := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			fs.VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
		}
	}
	served := map[string]bool{}
	for _, f := range families(t) {
		for _, end := range []string{"", "_bucket", "_sum", "_count"} {
			served[f.name+end] = true
		}
	}
	policy, err := os.ReadFile("../../installers/selinux/tandem.cil")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`(?m)^\(type (\w+)\)`).FindAllStringSubmatch(string(policy), -1) {
		served[name[1]] = true
	}
	unknown := func(page, text string) (bad []string) {
		for _, l := range commandLines(page, text) {
			if l.args[0] == "VERB" || l.args[0] == "packaging" {
				continue
			}
			if err := parses(l.args); err != nil {
				bad = append(bad, fmt.Sprintf("%s: %v", l.text, err))
			}
		}
		for _, f := range regexp.MustCompile("`--([a-z][a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			if !flags[f[1]] && !strings.Contains(foreign, " "+f[1]+" ") {
				bad = append(bad, "--"+f[1])
			}
		}
		for _, name := range regexp.MustCompile(`\b(?:tandem|kubeproxy)_[a-z0-9_]*[a-z0-9]\b`).FindAllString(text, -1) {
			if !served[name] {
				bad = append(bad, name)
			}
		}
		return bad
	}
	for _, p := range manual.New().Pages() {
		for _, bad := range unknown(p.Name, string(p.Source)) {
			t.Errorf("%s.md: %s", p.Name, bad)
		}
	}
	const wrong = "`tandem dance`, `tandem status`, `--no-such`, `--manifests`, `tandem_no_such`, `tandem_services`\n\n    tandem plan --sing\n\n```sh\n$ tandem explain pod\n```\n"
	if got := unknown("x", wrong); len(got) != 5 {
		t.Errorf("unknown are %q", got)
	}
}

// notExecuted says why a command of the manual is parsed only; empty for one that is executed.
func notExecuted(args []string) string {
	for _, a := range args {
		switch {
		case a == "--watch" || a == "-w" || a == "--listen":
			return "does not end by itself"
		case a == "--live":
			return "sends packets: ci/netns"
		case regexp.MustCompile(`^-*[A-Z_]{2,}|\.\.\.|…|=[A-Z]{2,}`).MatchString(a):
			return "has a word that stands for others"
		}
	}
	if len(args) == 1 && slices.Contains([]string{"explain", "trace", "replay", "config", "plan"}, args[0]) {
		return "is the name of a verb, in a sentence"
	}
	return map[string]string{
		"run": "programs this machine: TestOrdinaryStartIsQuiet", "demo": "makes network namespaces: TestDemoIsQuiet", "ui": "does not end by itself: TestUIOfASnapshot",
		"install": "changes this machine: platform/service", "uninstall": "changes this machine: platform/service",
		"start": "changes this machine: platform/service", "stop": "changes this machine: platform/service",
		"switch": "changes a running tandem: ci/netns", "cleanup": "changes this machine: TestCleanupTriesEveryMode, ci/netns", "test": "sends packets: ci/netns",
		"kubectl": "asks a cluster: TestKubectlPlugin and others", "hns": "asks HNS: ci/wine", "control": "is started in containers: TestKubectlAnswersAsOnTheNode",
		"VERB": "stands for all verbs", "packaging": "writes what packages have: TestManualPagesHaveTheFlagsOfHelp",
	}[args[0]]
}

// Every command in the manual is executed, beside files of the names that it has, and ends without a mistake, or is told
// that no tandem runs here, or that the snapshot, which is of another node, lacks the Service; or there is a reason for not executing it, which is printed.
func TestCommandsOfTheManual(t *testing.T) {
	snapshot, err := os.ReadFile("../../platform/testdata/nftables.snapshot")
	if err != nil {
		t.Fatal(err)
	}
	services := firstYAML(string(manual.New().Find("quickstart").Source))
	preset := config.Default()
	done, reasons := map[string]bool{}, map[string][]string{}
	for _, p := range manual.New().Pages() {
		for _, l := range commandLines(p.Name, string(p.Source)) {
			line := strings.Join(l.args, " ")
			if done[line] {
				continue
			}
			done[line] = true
			if why := notExecuted(l.args); why != "" {
				reasons[why] = append(reasons[why], line)
				continue
			}
			t.Run(p.Name+"/"+strings.Join(l.args, "_"), func(t *testing.T) {
				t.Chdir(t.TempDir())
				if err := os.Mkdir("services", 0o755); err != nil {
					t.Fatal(err)
				}
				files := map[string][]byte{"services/web.yaml": []byte(services)}
				args := slices.Clone(l.args)
				for i, a := range args {
					switch filepath.Ext(a) {
					case ".snapshot":
						files[a] = snapshot
					case ".conf", ".yaml":
						args[i] = filepath.Base(a)
						files[args[i]] = file.Render(&preset, false)
					}
				}
				for name, text := range files {
					if err := os.WriteFile(name, text, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				code, _, stderr := tandem(t, args...)
				alone := strings.Contains(stderr, "no tandem runs on this node") || strings.Contains(stderr, "no Service default/web") || // in the snapshot
					l.args[0] == "doctor" && !strings.Contains(stderr, "--help'") || l.args[0] == "status" && strings.Contains(stderr, "is it running")
				if code != exitOK && code != exitDiffers && (code != exitFailure || !alone) {
					t.Errorf("%s: exit code %d\n%s", l.text, code, stderr)
				}
			})
		}
	}
	skipped := 0
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		skipped += len(reasons[why])
		t.Logf("not executed, %s: %s", why, strings.Join(reasons[why], "; "))
	}
	if executed := len(done) - skipped; executed < 25 {
		t.Errorf("only %d of %d commands are executed", executed, len(done))
	}
}

// Each alert leads to its runbook, and each runbook is of an alert.
func TestEachAlertHasARunbook(t *testing.T) {
	text, err := os.ReadFile("../../installers/kubernetes/chart/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page := manual.New().Find("runbooks")
	books := map[string]bool{}
	for _, s := range page.Sections()[1:] {
		books[s.Anchor] = true
	}
	alerts := regexp.MustCompile(`(?m)^ *- alert: (\w+)`).FindAllStringSubmatch(string(text), -1)
	for _, a := range alerts {
		anchor := strings.ToLower(a[1])
		if !books[anchor] || !strings.Contains(string(text), "runbook_url: "+manual.Repository+"core/manual/pages/runbooks.md#"+anchor+"\n") {
			t.Errorf("%s has no runbook, or does not lead there", a[1])
		}
		delete(books, anchor)
	}
	for left := range books {
		t.Errorf("the runbook %s is of no alert", left)
	}
	if len(alerts) < 8 {
		t.Errorf("only %d alerts", len(alerts))
	}
}
