// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// Verdict says how an answer compares with the expected one.
type Verdict string

const (
	Expected  Verdict = "as expected"
	Different Verdict = "different"
	NotRun    Verdict = "not run"
)

// Result is the answer to one experiment on one network.
type Result struct {
	ID       string  `json:"id"`
	Network  string  `json:"network"` // its type
	Source   string  `json:"source"`
	Verdict  Verdict `json:"verdict"`
	Expected string  `json:"expected,omitempty"`
	Found    string  `json:"found"` // the answer, or why the experiment was not run
	Millis   int64   `json:"ms"`
}

// Time is how long the calls of one function took.
type Time struct {
	Function string  `json:"function"`
	Calls    int     `json:"calls"`
	Median   float64 `json:"medianMs"`
	Max      float64 `json:"maxMs"`
}

// APIVersion is the version of a report's format.
const APIVersion = "tandem.io/hns-report/v1"

// Report is the result of a run. It contains no names or addresses of the machine.
type Report struct {
	APIVersion string   `json:"apiVersion"`
	Tandem     string   `json:"tandem"`
	Windows    string   `json:"windows"` // such as "10.0.20348.2527"
	HNS        string   `json:"hns"`     // such as "13.2"
	Results    []Result `json:"results"`
	Times      []Time   `json:"times"`
	Calls      int      `json:"calls"`
	Left       []string `json:"left,omitempty"`  // objects that could not be deleted
	Ended      string   `json:"ended,omitempty"` // why the run ended early
}

// Options are the choices of a run.
type Options struct {
	Tandem   string // its version
	Windows  string
	Adapter  string       // for a network of type L2Bridge or Overlay; empty for none
	Overlay  bool         // Overlay instead of L2Bridge
	Service  Service      // restarts HNS; nil not to
	Switch   Switch       // sends packets; nil if no endpoint answers
	Progress func(Result) // called with each result; may be nil

	// Listen listens at a TCP port on all addresses of the machine; nil if no process can.
	Listen func(port int) (io.Closer, error)
}

// Listen is Options.Listen for this process. It accepts no connection.
func Listen(port int) (io.Closer, error) { return net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port)) }

// kinds returns the types of the networks that a run creates, one after the other.
func (o Options) kinds() []string {
	switch {
	case o.Adapter != "" && o.Overlay:
		return []string{"NAT", hns.TypeOverlay}
	case o.Adapter != "":
		return []string{"NAT", hns.TypeL2Bridge}
	}
	return []string{"NAT"}
}

// build returns the build in a version of Windows.
func build(windows string) int {
	parts := strings.Split(windows, ".")
	if len(parts) < 3 {
		return 0
	}
	n, _ := strconv.Atoi(parts[2])
	return n
}

// Run runs all experiments on an HNS, and deletes their objects. On an error there is no report.
func Run(ctx context.Context, h HNS, o Options) (Report, error) {
	l := &lab{ctx: ctx, hns: h, options: o, times: map[string][]time.Duration{}}
	v, err := l.version()
	if err != nil {
		return Report{}, err
	}
	l.about = About{Build: build(o.Windows), HNS: v}
	r := Report{APIVersion: APIVersion, Tandem: o.Tandem, Windows: o.Windows, HNS: v.String()}
	l.sweep() // what an earlier run has left
	l.left = nil
	for _, kind := range o.kinds() {
		l.kind = kind
		n, code := l.create(dll.Network, "", l.networkSettings(ownName, kind))
		l.made, l.network = nil, n.id() // sweep deletes it
		for _, e := range All() {
			l.number++
			result := l.ask(e, code)
			if o.Progress != nil {
				o.Progress(result)
			}
			r.Results = append(r.Results, result)
		}
		l.sweep()
	}
	r.Times, r.Calls, r.Left, r.Ended = timesOf(l.times), l.calls, l.left, l.ended
	return r, nil
}

// ask runs one experiment. code is the result of creating the network.
func (l *lab) ask(e Experiment, code hns.Code) Result {
	result := Result{ID: e.ID, Network: l.kind, Source: e.Source, Verdict: NotRun, Expected: e.Expected(l.about)}
	switch { // between experiments: one that has begun is completed
	case l.ended != "":
	case l.ctx.Err() != nil:
		l.ended = "the run was interrupted"
	case l.calls >= maxCalls:
		l.ended = fmt.Sprintf("the run has made %d calls", maxCalls)
	}
	switch {
	case l.ended != "":
		result.Found = l.ended
	case result.Expected == "":
		result.Found = "the question does not apply to this version"
	case code != 0:
		result.Found = "the network could not be created: " + text(code)
	case e.Needs == NeedsService && l.options.Service == nil, e.Needs == NeedsSwitch && l.options.Switch == nil,
		e.Needs == NeedsListener && l.options.Listen == nil:
		result.Found = "needs " + string(e.Needs)
	default:
		began := time.Now()
		l.failed = ""
		found := e.run(l)
		if l.failed = cmp.Or(l.failed, l.ended); l.failed != "" {
			result.Found = l.failed
		} else {
			result.Found, result.Verdict = found, judge(found, result.Expected)
		}
		l.tidy()
		l.failed, result.Millis = "", time.Since(began).Milliseconds()
	}
	return result
}

func judge(found, expected string) Verdict {
	if found == expected {
		return Expected
	}
	return Different
}

// accessDenied is ERROR_ACCESS_DENIED.
const accessDenied hns.Code = 5

// version reads the version of HNS.
func (l *lab) version() (v hns.Version, err error) {
	out := l.call(dll.Request{Verb: dll.Rest, Text: "GET /globals/version\n"})
	var reply struct {
		Success bool
		Output  hns.Version
	}
	switch {
	case l.ended != "":
		return v, errors.New(l.ended)
	case hns.CodeOf(out) == accessDenied:
		return v, errors.New("HNS denies access: run this as an administrator")
	case hns.CodeOf(out) != 0:
		return v, fmt.Errorf("reading the version of HNS failed: %s", hns.CodeOf(out))
	case json.Unmarshal([]byte(out.Text), &reply) != nil || !reply.Success:
		return v, errors.New("reading the version of HNS failed: invalid answer")
	}
	return reply.Output, nil
}

// timesOf summarises the times of calls, by function.
func timesOf(all map[string][]time.Duration) (times []Time) {
	for _, function := range slices.Sorted(maps.Keys(all)) {
		took := slices.Sorted(slices.Values(all[function]))
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		times = append(times, Time{function, len(took), ms(took[len(took)/2]), ms(took[len(took)-1])})
	}
	return times
}

// Count counts the results with a verdict.
func (r Report) Count(v Verdict) (n int) {
	for _, x := range r.Results {
		if x.Verdict == v {
			n++
		}
	}
	return n
}

// Version returns the version of HNS that a report is about.
func (r Report) Version() (v hns.Version, err error) {
	if _, err := fmt.Sscanf(r.HNS, "%d.%d", &v.Major, &v.Minor); err != nil {
		return v, fmt.Errorf("the report's version of HNS is %q: %w", r.HNS, err)
	}
	return v, nil
}

// maxReport bounds a report that is read, in bytes.
const maxReport = 4 << 20

// Read reads a report.
func Read(from io.Reader) (r Report, err error) {
	b, err := io.ReadAll(io.LimitReader(from, maxReport+1))
	switch {
	case err != nil:
		return r, err
	case len(b) > maxReport:
		return r, fmt.Errorf("the report is larger than %d bytes", maxReport)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("not a report of tandem test hns: %w", err)
	}
	if r.APIVersion != APIVersion {
		return r, fmt.Errorf("apiVersion %q: must be %q", r.APIVersion, APIVersion)
	}
	_, err = r.Version()
	return r, err
}

// Compare judges a report by what this version of Tandem expects of such a machine. It drops
// results of unknown experiments.
func Compare(r Report) (Report, error) {
	v, err := r.Version()
	if err != nil {
		return r, err
	}
	about := About{Build: build(r.Windows), HNS: v}
	known := map[string]Experiment{}
	for _, e := range All() {
		known[e.ID] = e
	}
	judged := r
	judged.Results = nil
	for _, x := range r.Results {
		e, ok := known[x.ID]
		if !ok {
			continue
		}
		if x.Source, x.Expected = e.Source, e.Expected(about); x.Verdict != NotRun {
			x.Verdict = judge(x.Found, x.Expected)
		}
		judged.Results = append(judged.Results, x)
	}
	return judged, nil
}
