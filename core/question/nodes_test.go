// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/question"
)

// A node's answer is read as a stream: its size does not count, nor does that of what it says
// beside its Services, which is refused when it is large.
func TestReadNodeIsBounded(t *testing.T) {
	const services = 200_000
	r, w := io.Pipe()
	go func() {
		fmt.Fprint(w, `{"version":"v1","services":[`)
		for i := range services {
			if i > 0 {
				fmt.Fprint(w, ",")
			}
			fmt.Fprintf(w, `{"name":"ns/service-%d","state":"Failing","hash":"%016x","frontends":[{"address":"10.96.0.1:80","why":"ready"}]}`, i, i)
		}
		fmt.Fprint(w, `],"desiredHash":"h1","inputs":[{"age":2.5}]}`)
		_ = w.Close()
	}()
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	seen, peak := 0, uint64(0)
	n, err := question.ReadNode("a", "tandem-a", r, func(question.NodeService) {
		if seen++; seen%20_000 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapAlloc)
		}
	})
	if err != nil || n.Services != services || n.Failing != services || seen != services || n.Hash != "h1" || n.Lag != 2.5 {
		t.Errorf("%v: %+v, %d seen", err, n, seen)
	}
	if peak > before.HeapAlloc+4<<20 {
		t.Errorf("%d bytes of memory for a stream", peak-before.HeapAlloc)
	}
	for text, want := range map[string]string{
		`{"version":"v1","reasons":["` + strings.Repeat("x", 5<<20) + `"]}`: "more than 4 MiB",
		`{"services":{}}`:      "not a tandem status",
		`[]`:                   "not a tandem status",
		`{}`:                   "not a tandem status",
		`{"version":"v1","ser`: "unexpected EOF",
	} {
		if _, err := question.ReadNode("a", "p", strings.NewReader(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s: %v", text, err)
		}
	}
}

// What a few bytes each make of a node's answer costs little memory: other programs may answer
// in a tandem's place.
func TestReadNodeMakesLittle(t *testing.T) {
	const size = 4 << 20
	many := func(of string) string { return strings.Repeat(","+of, size/(len(of)+1)) }
	for name, text := range map[string]string{
		"problems":   `{"version":"v1","problems":[{}` + many("{}") + `]}`,
		"inputs":     `{"version":"v1","inputs":[{}` + many("{}") + `]}`,
		"reasons":    `{"version":"v1","reasons":[""` + many(`""`) + `]}`,
		"services":   `{"version":"v1","services":[{}` + many("{}") + `]}`,
		"a service":  `{"version":"v1","services":[{"name":"a","frontends":[{}` + many("{}")[:size-size%3-300] + `]}]}`,
		"faults":     `{"version":"v1","services":[{"name":"a","problems":[{}` + many("{}")[:size-size%3-300] + `]}]}`,
		"again":      `{"version":"v1","services":[{"name":"a"` + strings.Repeat(`,"problems":[{}`+strings.Repeat(",{}", 49)+`]`, size/180) + `}],"reasons":[""]` + strings.Repeat(`,"reasons":["","",""]`, 1000) + `}`,
		"fields":     `{"version":"v1"` + many(`"a":{}`) + `}`,
		"long words": `{"version":"v1","services":[{"name":"` + strings.Repeat("a", size-200) + `"}]}`,
		"large":      `{"version":"v1","services":[{"name":"` + strings.Repeat("a", 64<<20) + `"}]}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := question.ReadNode("a", "tandem-a", strings.NewReader(text), func(question.NodeService) {})
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; made > 100<<20 {
			t.Errorf("%s: %d MiB for %d bytes (%v)", name, made>>20, len(text), err)
		} else {
			t.Logf("%s: %d MiB for %d bytes (%v)", name, made>>20, len(text), err)
		}
	}
}

// The problems of many nodes are each there once, the most urgent first, with the nodes that have them. Of what a node
// says so much is kept, and none of it decides what is kept of another.
func TestProblemsOfNodes(t *testing.T) {
	report := func(node, text string) question.NodeReport {
		t.Helper()
		r, err := question.ReportNode(node, "tandem-"+node, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const partial = `{"name":"ns/web","state":"Partial","problems":[{"reason":"Unsupported","detail":"no affinity"}]}`
	var flood strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&flood, `{"name":"ns/s%d","state":"Partial","problems":[{"reason":"Taken","detail":"%s"}]},`, i, strings.Repeat("ü", 500))
	}
	all := []question.NodeReport{
		report("a", `{"version":"v1","healthy":true,"desiredHash":"1","services":[`+partial+`,{"name":"ns/ok","state":"Programmed"}]}`),
		report("b", `{"version":"v1","desiredHash":"1","reasons":["not synced"],"problems":[{"object":"data plane","reason":"Failing","detail":"no space"}],"services":[`+partial+`]}`),
		report("c", `{"version":"v1","desiredHash":"2","services":[`+flood.String()+`{"name":"ns/z","state":"Failing","problems":[{"reason":"Failing","detail":"no space"}]}]}`),
		{Node: question.Node{Node: "d", Err: "no answer"}},
		{Node: question.Node{Node: "e"}},
	}
	question.CompareReports(all)
	var differs []string
	for _, r := range all {
		if r.Differs {
			differs = append(differs, r.Node.Node)
		}
	}
	if fmt.Sprint(differs) != "[c]" || all[1].Reasons[0] != "not synced" || all[0].Partial != 1 || all[2].Partial != 1000 || all[2].Failing != 1 {
		t.Errorf("%v differ, %+v", differs, all[2].Node)
	}
	problems := question.Together(all)
	var got []string
	for _, p := range problems[:3] {
		got = append(got, fmt.Sprint(p.Service, " ", p.State, " ", p.Detail, " ", p.Nodes))
	}
	want := []string{" " + " no space [b]", "ns/z Failing no space [c]", "ns/web Partial no affinity [a b]"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
	if n := len(problems); n != 52 || len(problems[n-1].Detail) > 1000 {
		t.Errorf("%d problems, the last of %d bytes", n, len(problems[n-1].Detail))
	}
}
