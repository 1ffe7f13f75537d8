// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/ui"
	"github.com/tandem-proxy/tandem/core/wire"
)

// world is a Tandem with so many Services, one of which is called <script>.
func world(services int) *ui.Input {
	names := []string{"checkout", "catalog", "payments", "search", "sessions", "mail", "billing", "images"}
	objects, sources := []*model.Service{}, []*model.Slice{}
	for i := range services {
		name := model.ServiceName{Namespace: []string{"shop", "data", "infra"}[i%3], Name: fmt.Sprintf("%s-%d", names[i%len(names)], i)}
		objects = append(objects, &model.Service{
			Name: name, Type: model.NodePort, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80, NodePort: uint16(30000 + i%2700)}},
		})
		slice := &model.Slice{Name: model.SliceName{Namespace: name.Namespace, Name: name.Name + "-x"}, Service: name.Name, Ports: []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}}}
		for k := range 5 {
			e := model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i >> 6), byte(i<<2 + k)}), Node: fmt.Sprintf("node-%d", k%3), State: model.Ready | model.Serving}
			if i%7 == 0 && k == 4 {
				e.State = model.Serving | model.Terminating
			}
			if i%11 == 0 && k == 3 {
				e.State = 0
			}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		sources = append(sources, slice)
	}
	host := &model.Host{Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}}
	all, _ := track.Once(host, &model.Objects{Services: objects, Slices: sources})
	in := &ui.Input{Status: question.Status{
		Version: "v1.0.0", Node: "node-1", Mode: "nftables", Source: "https://10.0.0.1:6443", Healthy: true, At: time.Unix(1_790_000_000, 0), Objects: 14 * services, Drift: 2, Hash: "4f7ac0d19be25f03",
		Inputs: []question.Input{{Name: "services", Age: 1.2, Version: "81234"}, {Name: "endpointslices", Age: 0.4, Version: "81260"}},
	}}
	for i, s := range all {
		ready := len(s.Ports[0].Frontends[0].On[model.FromOutside].Pool.Endpoints)
		row := question.Service{Ready: ready, NotReady: 5 - ready, Name: s.Object.Name.String(), State: []string{"Programmed", "Programmed", "Programmed", "Programmed", "Programmed", "Partial", "Programmed", "Programmed", "Failing"}[i%9]}
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				at := f.At.String()
				if f.Kind == model.KindNodePort {
					at = fmt.Sprintf("*:%d", f.At.Port())
				}
				row.Frontends = append(row.Frontends, question.Frontend{Port: "http", Kind: f.Kind.String(), Address: at, Proto: "tcp", Endpoints: ready, Why: "ClusterEndpoints"})
			}
		}
		if row.State != "Programmed" {
			row.Problems = []question.Problem{{Reason: "Unsupported", Detail: "no room for <b>this</b> frontend"}}
		}
		in.Status.Services = append(in.Status.Services, row)
	}
	past := history.Document{Total: 400}
	for i := range 400 {
		name := all[i%len(all)].Object.Name
		took := history.Seconds(0.0002 * float64(1+i%9) * float64(1+i%4))
		e := history.Entry{
			Number: uint64(i + 1), At: time.Unix(1_789_999_600+int64(i), 123e6), Kind: "EndpointSlice", Verb: "changed", Object: name.String() + "-x", Service: name.String(), Age: 0.012,
			Sync: &history.Applied{Number: uint64(i + 1), Changes: 1, Replaced: 2, Took: took, Stages: history.Times{Queue: took / 10, Resolve: took / 20, Compile: took / 20, Write: took * 4 / 5}},
		}
		if i%97 == 0 {
			e.Sync.Failed, e.Sync.Err = 1, "create element: no space left <on device>"
		}
		past.Entries = append(past.Entries, e)
	}
	for i := range 50 {
		past.Hour = append(past.Hour, history.Minute{
			At: time.Unix(1_789_996_800+60*int64(i), 0), Changes: uint64(i % 9 * 30), Median: 0.000256, P99: 0.000512 * history.Seconds(1+i%5*i%9),
			CPU: 0.002 * history.Seconds(1+i%9), Memory: uint64(48_000_000 + i%7*1_000_000),
		})
	}
	counts, ends, open := question.TopCounts{}, question.TopEndpoints{}, question.TopFlows{}
	for i, s := range all {
		for _, p := range s.Ports {
			at := p.Frontends[0].At
			counts.Add(dataplane.Connections{Proto: p.ID.Proto, At: at, New: uint64(i * 10)})
			for k := range i % 5 {
				to := netip.AddrPortFrom(s.Slices[0].Endpoints[k].Addr, 8080)
				ends.Add(dataplane.Connections{Proto: p.ID.Proto, At: at, Endpoint: to, New: uint64(i * 2)})
				open.Add(p.ID.Proto, at, to, uint64(1000*i+k))
			}
		}
	}
	in.Document = &question.Document{
		Counts:   &question.TopSources{At: in.Status.At, Counts: counts, Endpoints: ends, Flows: open},
		Snapshot: &engine.Snapshot{Host: host, Services: all}, Facts: question.Facts{Node: "node-1", Mode: "nftables"},
		Plane: question.Plane{Trace: func(_ context.Context, ports []*model.Port, packet oracle.Packet) (dataplane.Trace, error) {
			same := oracle.Decide(host, ports, packet)
			return dataplane.Trace{Installed: same, Programmed: same, Objects: 7}, nil
		}},
		History: func(f history.Filter) (history.Document, int, iter.Seq[*history.Entry]) {
			found := past.Select(f)
			return found, len(found.Entries), wire.ListOf(found.Entries).Each
		},
	}
	return in
}

func source(in *ui.Input) ui.Source {
	return ui.Of(func(context.Context) (*ui.Input, error) { return in, nil })
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// every is an address of each page, with its answer and something that is in it.
func every(in *ui.Input) []struct {
	path string
	code int
	want string
} {
	first := in.Document.Services[0].Object.Name.String()
	return []struct {
		path string
		code int
		want string
	}{
		{"/ui", 200, "Problems of "},
		{"/ui/?sort=name", 200, first},
		{"/ui?q=checkout+shop&state=Programmed&page=1", 200, "shop/checkout-"},
		{"/ui?q=10.96.0.1", 200, "10.96.0.1"},
		{"/ui?q=nothing-like-it", 200, "No Service fits."},
		{"/ui?page=99999999999999999999", 200, "Page 1 of"},
		{"/ui?page=1000", 200, "Previous"},
		{"/ui?state=Pending", 200, "Pending"},
		{"/ui/service/" + first, 200, "From frontends to endpoints"},
		{"/ui/service/" + first, 200, `<td class="why">balanced over ready endpoints of the cluster</td>`},
		{"/ui/service/no/such", 404, "No such Service"},
		{"/ui/traffic", 200, "with connections"},
		{"/ui/traffic?sort=bytes&q=shop&page=2", 200, "sort=byterate"},
		{"/ui/traffic?q=nothing-like-it", 200, "No connections."},
		{"/ui/traffic?service=" + first, 200, "Traffic of " + first},
		{"/ui/traffic?service=no/such", 404, "No such Service"},
		{"/ui/history", 200, "What came, and what it rewrote"},
		{"/ui/history?failed=1", 200, "no space left &lt;on device&gt;"},
		{"/ui/history?q=payments&page=2", 200, "payments"},
		{"/ui?sort=ready&state=Partial", 200, "sort=name"},
		{"/ui/explain", 200, "Explain a connection"},
		{"/ui/explain?from=outside&to=" + first + ":80", 200, "each decision, with its reason"},
		{"/ui/explain?from=pod&to=nowhere", 400, "role=\"alert\""},
		{"/ui/explain?trace=1&from=outside&to=" + first + ":80", 200, "SAME: the data plane"},
		{"/ui/explain?trace=1&from=pod&to=nowhere", 400, "role=\"alert\""},
		{"/ui/docs/", 200, "The manual of Tandem"},
		{"/ui/docs/modes", 200, "kernelspace"},
		{"/ui/docs/search?q=session+affinity", 200, "sections have all words"},
		{"/ui/style.css", 200, "prefers-color-scheme"},
		{"/ui/script.js", 200, "keydown"},
	}
}

func TestPages(t *testing.T) {
	in := world(300)
	h := ui.Handler(source(in))
	for _, c := range every(in) {
		w := get(h, c.path)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d, want %d with %q\n%.3000s", c.path, w.Code, c.code, c.want, w.Body)
		}
		if got := w.Header().Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
			t.Errorf("%s: policy %q", c.path, got)
		}
		for _, foreign := range []string{"http://", "//cdn", "style=", "onclick", "<b>this</b>"} {
			if strings.Contains(w.Body.String(), foreign) {
				t.Errorf("%s has %q", c.path, foreign)
			}
		}
	}
	if w := get(h, "/ui/nothing"); w.Code != http.StatusNotFound {
		t.Errorf("%d", w.Code)
	}
}

// Why an endpoint is not used is what tandem services says, failover included.
func TestEndpointReasons(t *testing.T) {
	in := world(12)
	of := in.Document.Services[slices.IndexFunc(in.Document.Services, func(s *track.View) bool { return s.Object.Name.Name == "catalog-1" })]
	ends := of.Slices[0].Endpoints
	in.Document.Suspects = model.Suspects{ends[0].Addr: {}}
	suspected := resolve.MarkUnanswered(of.Slices, in.Document.Suspects)
	copy(of.Ports, resolve.Service(in.Document.Host, of.Object, suspected).Ports)
	body := get(ui.Handler(source(in)), "/ui/service/"+of.Object.Name.String()).Body.String()
	if !strings.Contains(body, "ejected: unresponsive") || !strings.Contains(body, `class="state unanswered"`) {
		t.Errorf("%s", body)
	}
}

// Where those who see the pages may not have the data plane read, no page does.
func TestPagesWithoutTraces(t *testing.T) {
	in := world(1)
	in.Document.Plane.Trace = func(context.Context, []*model.Port, oracle.Packet) (dataplane.Trace, error) {
		t.Error("the data plane was read")
		return dataplane.Trace{}, nil
	}
	from := source(in)
	from.Trace = nil
	w := get(ui.Handler(from), "/ui/explain?trace=1&from=outside&to="+in.Document.Services[0].Object.Name.String()+":80")
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "each decision") || strings.Contains(w.Body.String(), "Trace") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

// Nothing but GET is answered, whatever the page.
func TestOnlyGET(t *testing.T) {
	h := ui.Handler(source(world(1)))
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/ui", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

// What users wrote is shown, and never becomes part of a page.
func TestHostileNames(t *testing.T) {
	in := world(1)
	const evil = `"><script>alert(1)</script>`
	in.Status.Node, in.Status.Services[0].Name, in.Status.Services[0].Frontends[0].Address = evil, "shop/"+evil, evil
	in.Status.Services[0].State = evil
	in.Document.History = func(history.Filter) (history.Document, int, iter.Seq[*history.Entry]) {
		all := []history.Entry{{Kind: "Service", Detail: evil, Sync: &history.Applied{Err: evil}}}
		return history.Document{}, len(all), wire.ListOf(all).Each
	}
	in.Status.Reasons = []string{evil}
	h := ui.Handler(source(in))
	for _, path := range []string{"/ui", "/ui?q=" + `%22%3E%3Cscript%3E`, "/ui/history", "/ui/service/shop/" + `%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E`} {
		if w := get(h, path); strings.Contains(w.Body.String(), "<script>") {
			t.Errorf("%s:\n%s", path, w.Body)
		}
	}
	from := source(world(1))
	services := from.Services
	from.Services = func(ctx context.Context, p question.ServicesRequest) (question.Services, error) {
		all, err := services(ctx, p)
		for i := range all.Services {
			for j := range all.Services[i].Frontends {
				f := &all.Services[i].Frontends[j]
				f.Address, f.Kind, f.Proto = evil, evil, evil
			}
			for j := range all.Services[i].Endpoints {
				e := &all.Services[i].Endpoints[j]
				e.Address, e.Node, e.Port, e.Slice, e.Why = evil, evil, evil, evil, evil
			}
		}
		return all, err
	}
	from.Top = func(_ context.Context, r question.TopRequest) (question.Top, error) {
		row := question.TopService{Service: evil, Endpoints: []question.TopAddress{{Address: evil, Proto: evil, Pod: evil}}}
		if r.Endpoints {
			row.Service = "shop/checkout-0"
		}
		return question.Top{NotCounted: evil, BytesNotCounted: evil, Tracked: true, Services: []question.TopService{row}}, nil
	}
	for _, path := range []string{"/ui/traffic", "/ui/traffic?service=shop/checkout-0"} {
		if w := get(ui.Handler(from), path); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "<script>") || !strings.Contains(w.Body.String(), "alert(1)") {
			t.Errorf("%s: %d\n%s", path, w.Code, w.Body)
		}
	}
	if w := get(ui.Handler(from), "/ui/service/shop/checkout-0"); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "<script>") || !strings.Contains(w.Body.String(), "alert(1)") {
		t.Errorf("a Service: %d\n%s", w.Code, w.Body)
	}
}

// A page of another site makes a browser load nothing, as a question may have a node's data plane read back.
func TestOtherSitesLoadNothing(t *testing.T) {
	h := ui.Handler(source(world(1)))
	for _, tt := range []struct {
		site, to string
		want     int
	}{{"", "", 200}, {"none", "document", 200}, {"same-origin", "empty", 200}, {"cross-site", "document", 200}, {"cross-site", "image", 403}, {"same-site", "iframe", 403}} {
		r, w := httptest.NewRequest("GET", "/ui", nil), httptest.NewRecorder()
		r.Header.Set("Sec-Fetch-Site", tt.site)
		r.Header.Set("Sec-Fetch-Dest", tt.to)
		if h.ServeHTTP(w, r); w.Code != tt.want {
			t.Errorf("%s, %s: %d, want %d", tt.site, tt.to, w.Code, tt.want)
		}
	}
}

// The first problems are in the colour of their Service's state, and the page says how many there are besides; what is
// counted is readable.
func TestProblemsBesides(t *testing.T) {
	in := world(5000)
	for i := range in.Status.Services {
		s := &in.Status.Services[i]
		if s.State == "Failing" && i > 40 {
			s.State = "Partial"
		}
	}
	page := get(ui.Handler(source(in)), "/ui").Body.String()
	for want, n := range map[string]int{`<li class="failing">`: 4, `<li class="partial">`: 4, "and 1,102 more": 1, "Problems of 1,110 Services": 1, "5,000 of 5,000 Services": 1, "<dd>70,000</dd>": 1} {
		if got := strings.Count(page, want); got != n {
			t.Errorf("%s is there %d times, not %d", want, got, n)
		}
	}
	if page := get(ui.Handler(source(world(9))), "/ui").Body.String(); strings.Contains(page, " more: ") || !strings.Contains(page, "<dd>126</dd>") {
		t.Error("more problems than two, or 126 with a comma")
	}
}

// A page of 10,000 Services takes less than 100 ms.
func TestManyServices(t *testing.T) {
	in := world(10_000)
	h := ui.Handler(source(in))
	for _, path := range []string{"/ui", "/ui?q=mail+infra", "/ui?state=Failing&page=3", "/ui/service/shop/checkout-0", "/ui/history", "/ui/traffic", "/ui/traffic?sort=open"} {
		fastest := time.Hour
		for range 5 { // the machine may be busy
			start := time.Now()
			w := get(h, path)
			fastest = min(fastest, time.Since(start))
			if w.Code != 200 || w.Body.Len() > 300<<10 {
				t.Errorf("%s: %d, %d bytes", path, w.Code, w.Body.Len())
			}
		}
		t.Logf("%s: %s", path, fastest)
		if fastest > 100*time.Millisecond {
			t.Errorf("%s took %s", path, fastest)
		}
	}
}

// The overview has the last hour, a bar for each minute of which something is known; older versions tell none.
func TestTheLastHour(t *testing.T) {
	in := world(3)
	page := get(ui.Handler(source(in)), "/ui").Body.String()
	for _, want := range []string{
		"The last hour", "Changes: 5,700, p99 of the slowest minute 4.61ms", "CPU: 0.016 % of a core, at most 0.03 % in a minute", "Memory: 48 MB, at most 54 MB",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	if n := strings.Count(page, `<title>`); n < 3*40 {
		t.Errorf("%d bars", n)
	}
	list := in.Document.History
	in.Document.History = func(f history.Filter) (history.Document, int, iter.Seq[*history.Entry]) {
		d, n, each := list(f)
		d.Hour = nil
		return d, n, each
	}
	if page := get(ui.Handler(source(in)), "/ui").Body.String(); strings.Contains(page, "The last hour") {
		t.Error("an hour of which nothing is known")
	}
}
