// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/tandem-proxy/tandem/core/question"
)

// narrow is a terminal without a terminal.
func narrow(width int, color bool) (*screen, *bytes.Buffer) {
	var b bytes.Buffer
	return &screen{out: &b, width: width, color: color}, &b
}

func threeColumns() table {
	t := table{columns: []column{{name: "NAME"}, {name: "ADDRESS", keep: true}, {name: "WHY", wide: true}, {name: "STATE", state: true, keep: true}}}
	t.add("default/a-name-that-is-much-too-long", "10.96.0.1:80/tcp", "balanced", "Failing")
	t.add("", "10.96.0.2:80/tcp", "\x1b[2Jforged", "")
	return t
}

func TestTableFitsTheScreen(t *testing.T) {
	for _, width := range []int{0, 36, 45, 80} {
		s, b := narrow(width, false)
		s.table(threeColumns())
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); width > 0 && n > width {
				t.Errorf("%d columns: a line of %d:\n%s", width, n, b)
			}
			if strings.HasSuffix(line, " \n") {
				t.Errorf("%d columns: spaces at the end of %q", width, line)
			}
		}
		if !strings.Contains(b.String(), "10.96.0.2:80/tcp\n") || !strings.Contains(b.String(), "Failing") || strings.Contains(b.String(), "WHY") {
			t.Errorf("%d columns:\n%s", width, b)
		}
		if full := strings.Contains(b.String(), "much-too-long"); full != (width == 0 || width == 80) {
			t.Errorf("%d columns, the name in full: %t\n%s", width, full, b)
		}
	}
}

func TestWideTableIsComplete(t *testing.T) {
	s, b := narrow(20, false)
	s.wide = true
	s.table(threeColumns())
	_ = s.flush()
	const want = `NAME                                  ADDRESS           WHY            STATE
default/a-name-that-is-much-too-long  10.96.0.1:80/tcp  balanced       Failing
                                      10.96.0.2:80/tcp  \x1b[2Jforged
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b, want)
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	s, b := narrow(80, true)
	s.table(threeColumns())
	_ = s.flush()
	if !strings.Contains(b.String(), "\x1b[31mFailing\x1b[0m") || strings.Contains(b.String(), "\x1b[2J") {
		t.Errorf("%q", b)
	}
	if s := newScreen(b); s.color || s.tty {
		t.Error("a buffer is no terminal")
	}
}

// Each answer is an object that begins with its apiVersion, whatever it is made of.
func TestAnswersHaveAVersion(t *testing.T) {
	var names []string
	for verb, document := range answers() {
		var b bytes.Buffer
		if err := writeJSON(&b, versioned{document}); err != nil {
			t.Fatal(err)
		}
		if verb == "tandem test hns" { // whose reports have a version of their own
			continue
		}
		if !strings.HasPrefix(b.String(), "{\n  \"apiVersion\": \"tandem.dev/v1\"") {
			t.Errorf("%s begins with %.40q", verb, b.String())
		}
		if strings.Contains(b.String(), `"items": [`) {
			names = append(names, verb)
		}
		var back map[string]any
		if err := json.Unmarshal(b.Bytes(), &back); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	slices.Sort(names)
	if want := []string{"tandem config explain", "tandem doctor", "tandem kubectl diff", "tandem kubectl status"}; !slices.Equal(names, want) {
		t.Errorf("lists are %q, want %q", names, want)
	}
	code, stdout, _ := tandem(t, "version", "-o", "json")
	if code != exitOK || !strings.HasPrefix(stdout, "{\n  \"apiVersion\": \"tandem.dev/v1\",\n  \"version\"") {
		t.Errorf("exit code %d, %s", code, stdout)
	}
	if code, stdout, _ := tandem(t, "version", "-o", "yaml"); code != exitOK || !strings.HasPrefix(stdout, "apiVersion: tandem.dev/v1\nversion: ") {
		t.Errorf("exit code %d, %s", code, stdout)
	}
}

// A YAML document equals the JSON one, and neither controls a terminal.
func TestYAMLIsTheJSONDocument(t *testing.T) {
	doc := map[string]any{
		"text": "a\x1b[31m\n\u202eb\u009b\U000e0001", "looks": "true", "number": 1.5, "list": []any{"0x1", "null", "", map[string]any{"k": nil}}, "none": []any{}, "empty": map[string]any{},
	}
	var b, j bytes.Buffer
	if err := errors.Join(writeYAML(&b, doc), writeJSON(&j, doc)); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String()+j.String(), "\x1b\u202e\u009b\U000e0001") {
		t.Errorf("%q", b.String())
	}
	var fromYAML, fromJSON any
	if err := errors.Join(yaml.Unmarshal(b.Bytes(), &fromYAML), json.Unmarshal(j.Bytes(), &fromJSON)); err != nil || !reflect.DeepEqual(fromYAML, fromJSON) {
		t.Errorf("%v\n%s\n%s", err, &b, &j)
	}
}

// Every verb with -o has the same forms, and completes them.
func TestOutputsAreTheSameEverywhere(t *testing.T) {
	var visit func(*cobra.Command)
	seen := 0
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		if c.Flags().Lookup("output") == nil {
			return
		}
		seen++
		args := append(strings.Fields(c.CommandPath())[1:], "--output", "")
		_, stdout, _ := tandem(t, append([]string{"__complete"}, args...)...)
		if !strings.HasPrefix(stdout, "table\nwide\njson\nyaml\n") {
			t.Errorf("%s: completion of -o:\n%s", c.CommandPath(), stdout)
		}
		if code, _, stderr := tandem(t, append(args[:len(args)-1], "xml")...); code != exitUsage || !strings.Contains(stderr, "table, wide, json, yaml") {
			t.Errorf("%s -o xml: exit code %d, %s", c.CommandPath(), code, stderr)
		}
	}
	visit(newRoot())
	if seen < 5 {
		t.Errorf("only %d verbs have -o", seen)
	}
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"switch --to ":            "nftables\n",
		"run --proxy-mode ":       "auto\n",
		"plan --compat ":          "lenient\n",
		"run --logging-format ":   "json\n",
		"config explain iptables": "iptables.masqueradeBit\n",
		"config explain --clus":   "--cluster-cidr\n",
		"status --state ":         "Partial\n",
		"config explain -o ":      "yaml\n",
		"explain ":                "pod\n",
		"trace o":                 "outside\n",
	} {
		args := append([]string{"__complete"}, strings.Split(line, " ")...)
		if _, stdout, _ := tandem(t, args...); !strings.Contains(stdout, want) || !strings.Contains(stdout, ":4\n") {
			t.Errorf("%s: no %q in:\n%s", line, want, stdout)
		}
	}
}

func TestFilter(t *testing.T) {
	for _, test := range []struct {
		filter        filter
		object, state string
		want          bool
	}{
		{filter{}, "default/web", "Programmed", true},
		{filter{Filter: question.Filter{Namespace: "default"}}, "default/web", "", true},
		{filter{Filter: question.Filter{Namespace: "default"}}, "other/web", "", false},
		{filter{Filter: question.Filter{Name: "we?"}}, "default/web", "", true},
		{filter{Filter: question.Filter{Name: "w*"}}, "default/db", "", false},
		{filter{Filter: question.Filter{States: []string{"partial", "Failing"}}}, "default/web", "Partial", true},
		{filter{Filter: question.Filter{States: []string{"failing"}}}, "default/web", "Partial", false},
	} {
		if got := test.filter.Match(test.object, test.state); got != test.want {
			t.Errorf("%+v, %s %s: %t", test.filter, test.object, test.state, got)
		}
	}
	if code, _, _ := tandem(t, "status", "--name", "[", "--address", "127.0.0.1:1"); code != exitUsage {
		t.Errorf("a bad pattern: exit code %d", code)
	}
}

// statusServer answers with documents, one after the other, and then with the last one.
func statusServer(t *testing.T, docs ...question.Status) (address string) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(docs[min(n, len(docs)-1)])
		n++
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func someStatus() question.Status {
	return question.Status{
		Version: "v1", Node: "n\u202e\u009b", Mode: "nftables", Fallback: "ipvs is unavailable: no\x1b[2J module", Reasons: []string{"server says\nforged \u2066line"},
		Services: []question.Service{
			{Name: "ns/good", State: "Programmed", Frontends: []question.Frontend{{Address: "10.96.0.1:80", Proto: "tcp", Kind: "cluster IP", Endpoints: 2, Why: "Balanced"}}},
			{Name: "ns/partial", State: "Partial", Problems: []question.Problem{{Reason: "FrontendTaken", Detail: "node port 30080", Where: "a.yaml:3"}}},
		},
		Problems: []question.Problem{{Object: "Service ns/bad\x1b[31m\nforged", Where: "b.yaml:7", Detail: "spec.prots: unknown field"}},
	}
}

// What users write must not drive the terminal or forge lines.
func TestStatusText(t *testing.T) {
	address := statusServer(t, someStatus())
	_, stdout, _ := tandem(t, "status", "--address", address)
	for _, line := range []string{
		`on n\u202e\x9b: NOT healthy`,
		`  mode nftables because ipvs is unavailable: no\x1b[2J module` + "\n",
		`  because server says\x0aforged \u2066line` + "\n",
		"ns/good     10.96.0.1:80/tcp  cluster IP  2          Balanced  Programmed  all\n",
		"! ns/partial: node port 30080 (a.yaml:3)\n",
		`! Service ns/bad\x1b[31m\x0aforged: spec.prots: unknown field (b.yaml:7)` + "\n",
	} {
		if !strings.Contains(stdout, line) {
			t.Errorf("%q is missing in:\n%s", line, stdout)
		}
	}
	if _, stdout, _ = tandem(t, "status", "--address", address, "--state", "partial", "-o", "yaml"); strings.Contains(stdout, "ns/good") || !strings.Contains(stdout, "name: ns/partial\n") {
		t.Errorf("filtered:\n%s", stdout)
	}
	if _, stdout, _ = tandem(t, "status", "--address", address, "-o", "wide"); !strings.Contains(stdout, "PORT") {
		t.Errorf("wide:\n%s", stdout)
	}
}

// A tandem that is not healthy is a failure for scripts, and what was never read does not count as up to date.
func TestStatusOfAnUnhealthyNode(t *testing.T) {
	sick := `{"version":"v1","node":"n","mode":"nftables","healthy":%t,"services":[],"inputs":[{"name":"services","age":12,"neverListed":%t}]}`
	for _, healthy := range []bool{false, true} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, sick, healthy, !healthy) }))
		code, stdout, stderr := tandem(t, "status", "--address", strings.TrimPrefix(s.URL, "http://"))
		s.Close()
		if (code == exitOK) != healthy || code > exitFailure || strings.Contains(stdout, "never listed") == healthy || strings.Contains(stdout, "up to date") != healthy ||
			strings.Contains(stderr, "n is not healthy") == healthy {
			t.Errorf("healthy %t: exit code %d, %s%s", healthy, code, stdout, stderr)
		}
	}
}

// Where Services in some states are asked for, what is wrong with them comes before problems of none.
func TestWhatWasAskedForComesFirst(t *testing.T) {
	d := question.Status{Version: "v1", Node: "n", Services: []question.Service{{Name: "ns/web", State: "Failing", Problems: []question.Problem{{Detail: "no space left"}}}}}
	for i := range 25 {
		d.Problems = append(d.Problems, question.Problem{Object: fmt.Sprint("EndpointSlice ns/s", i), Detail: "rejected"})
	}
	if _, stdout, _ := tandem(t, "status", "--address", statusServer(t, d), "--state", "failing"); !strings.Contains(stdout, "! ns/web: no space left") {
		t.Errorf("not told why it fails:\n%s", stdout)
	}
}

// Of many Services the status is a screen: how many are in each state, what is wrong, and the worst.
func TestStatusOfManyServices(t *testing.T) {
	d := question.Status{Version: "v1", Node: "n", Healthy: true}
	for i := range 5000 {
		svc := question.Service{Name: fmt.Sprintf("ns/web-%04d", i), State: "Programmed"}
		if i%100 == 42 {
			svc.State, svc.Problems = "Failing", []question.Problem{{Detail: "no space left"}}
		}
		d.Services = append(d.Services, svc)
	}
	address := statusServer(t, d)
	code, stdout, _ := tandem(t, "status", "--address", address)
	lines := strings.Split(stdout, "\n")
	if code != exitOK || len(lines) > 60 || !strings.Contains(stdout, "5000 Services (50 Failing, 4950 Programmed)") ||
		!strings.Contains(stdout, "and 4980 more Services (--all)") || strings.Contains(stdout, "ns/web-0000") || !strings.Contains(stdout, "! ns/web-0042: no space left") {
		t.Errorf("exit code %d, %d lines:\n%s", code, len(lines), stdout)
	}
	if _, stdout, _ = tandem(t, "status", "--address", address, "--all"); strings.Count(stdout, "ns/web-") != 5050 {
		t.Errorf("--all names %d", strings.Count(stdout, "ns/web-"))
	}
	if _, stdout, _ = tandem(t, "status", "--address", address, "-n", "nope"); !strings.Contains(stdout, "0 of 5000 Services match\n") {
		t.Errorf("-n nope:\n%s", stdout)
	}
	if _, stdout, _ = tandem(t, "status", "--address", address, "--state", "failing", "-o", "name"); !strings.HasPrefix(stdout, "ns/web-0042\nns/web-0142\n") {
		t.Errorf("-o name:\n%.100s", stdout)
	}
	if _, stdout, _ = tandem(t, "status", "--address", address, "-A", "--no-headers"); strings.Contains(stdout, "SERVICE") || !strings.Contains(stdout, "ns/web-0042") {
		t.Errorf("--no-headers:\n%s", stdout)
	}
}

// A state that no Service can be in is a mistake for every verb that selects by it.
func TestUnknownState(t *testing.T) {
	for _, verb := range []string{"status", "services"} {
		if code, _, stderr := tandem(t, verb, "--state", "Partial,Foo"); code != exitUsage || !strings.Contains(stderr, "--state Foo: choose of Failing, Partial, Pending, Programmed") {
			t.Errorf("%s: exit code %d, %s", verb, code, stderr)
		}
	}
}

// A narrow terminal loses columns before names are cut: the last one first.
func TestNarrowTablesDropColumns(t *testing.T) {
	for width, lost := range map[int]string{100: "", 80: "SOURCES", 70: "SOURCES WHY", 56: "SOURCES WHY KIND"} {
		s, b := narrow(width, false)
		s.table(servicesTable([]question.Service{{Name: "shop/frontend", State: "Programmed", Frontends: []question.Frontend{{Address: "10.96.0.1:80", Proto: "tcp", Kind: "cluster IP", Why: "Balanced"}}}}))
		_ = s.flush()
		head, row, _ := strings.Cut(b.String(), "\n")
		for _, name := range []string{"KIND", "WHY", "SOURCES"} {
			if strings.Contains(head, name) == strings.Contains(lost, name) {
				t.Errorf("%d columns: %s", width, head)
			}
		}
		if !strings.Contains(row, "shop/frontend ") || utf8.RuneCountInString(head) > width {
			t.Errorf("%d columns:\n%s", width, b)
		}
	}
}

func TestStatusWatch(t *testing.T) {
	first, second := someStatus(), someStatus()
	second.Mode = "iptables"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out := stopAt{text: "mode iptables", stop: stop}
	var stderr bytes.Buffer
	code := run(ctx, []string{"tandem", "status", "--watch", "--interval", "100ms", "--address", statusServer(t, first, second)}, &out, &stderr)
	if code != exitOK || !strings.Contains(out.String(), "mode nftables") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("exit code %d, %s\n%s", code, &stderr, &out)
	}
	if code, _, _ := tandem(t, "status", "--watch", "--interval", "1ms"); code != exitUsage {
		t.Errorf("a short interval: exit code %d", code)
	}
}

// A watch leaves no connection open behind an answer.
func TestStatusClosesItsConnection(t *testing.T) {
	closed := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	if _, err := fetchStatus(cmd, server.Listener.Addr().String(), &question.Filter{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Error("the connection is open after its answer")
	}
}

// stopAt calls stop when a text has been written.
type stopAt struct {
	bytes.Buffer
	text string
	stop func()
}

func (s *stopAt) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(s.text)) {
		s.stop()
	}
	return s.Buffer.Write(b)
}

// Endpoints are shown with their pods, where any has one.
func TestPodsBesideEndpoints(t *testing.T) {
	pods := strings.NewReplacer("- addresses: [10.244.1.2]", "- {addresses: [10.244.1.2], targetRef: {kind: Pod, namespace: default, name: web-0}}").Replace(webYAML)
	for yaml, want := range map[string][]string{
		pods:    {"ENDPOINT             PORT  POD    NODE", "10.244.1.2:8080/tcp  http  web-0  -", "10.244.1.3:8080/tcp  http  -      -"},
		webYAML: {"ENDPOINT             PORT  NODE"},
	} {
		w := newWorld(t, map[string]http.Handler{"a": nodeOf(t, "a", map[string]string{"web.yaml": yaml, "node.yaml": nodeYAML("a", "1")}, nil)})
		_, out, stderr := kubectl(t, "services", "--node", "a", "default/web", "--kubeconfig", w.kubeconfig)
		for _, line := range want {
			if !strings.Contains(out, line) {
				t.Errorf("no %q in %s%s", line, out, stderr)
			}
		}
		if _, out, _ = kubectl(t, "explain", "--node", "a", "pod", "default/web:80", "--kubeconfig", w.kubeconfig); strings.Contains(out, "sees the client, pod web-0\n") != (yaml == pods) {
			t.Error(out)
		}
	}
}
