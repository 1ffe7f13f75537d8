// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/snapshot"
	inmemory "github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/wire"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/nftables"
)

// questioned is a running proxy on a machine in memory.
type questioned struct {
	testing.TB
	proxy    *Proxy
	dir      string
	services int
	changed  int
}

func startQuestioned(t testing.TB, services int) *questioned {
	return startQuestionedOver(t, services, func(d driver) driver { return d })
}

// driver is that of the data plane in memory.
type driver = dataplane.Driver[nft.Key, nft.Value]

// startQuestionedOver is startQuestioned with something around the driver, and around the backend what that makes
// of it.
func startQuestionedOver(t testing.TB, services int, wrap func(driver) driver) *questioned {
	a := &questioned{TB: t, dir: t.TempDir(), services: services}
	a.put()
	mode := nftables.Mode()
	mode.Name, mode.Conntrack = config.NFTables, false
	mode.Probe = func(context.Context) error { return nil }
	mode.Open = func(_ context.Context, _ *config.Config, _ *slog.Logger) (dataplane.Backend, error) {
		compiler := nftables.NewCompiler(nftables.Options{})
		d := wrap(inmemory.New[nft.Key](compiler.Equal, dataplane.Limits{Batch: 1000}))
		b := dataplane.New(compiler, d)
		if around, ok := d.(interface {
			backend(dataplane.Backend) dataplane.Backend
		}); ok {
			b = around.backend(b)
		}
		return b, nil
	}
	c := config.Default()
	c.NodeName, c.Manifests, c.Mode, c.HealthAddress, c.HTTPAddress, c.Failover = "here", a.dir, config.NFTables, "", "", config.FailoverOff
	unsupported := func(context.Context, string, string) (net.Listener, error) { return nil, errors.New("no listeners") }
	machine := Simulation{
		Modes: []dataplane.Mode{mode}, Listen: unsupported,
		Lock:      func() (io.Closer, error) { return io.NopCloser(nil), nil },
		Control:   func() (net.Listener, error) { return net.Listen("unix", filepath.Join(t.TempDir(), "control")) },
		Addresses: func() ([]model.LocalAddress, error) { return nil, nil },
	}
	p, err := machine.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a.proxy = p
	p.watcher.open = func(dataplane.Mode) (monitor.Source, []string, error) { return new(seen), nil, nil }
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if !p.Ready(ctx) {
		t.Fatal("not ready")
	}
	return a
}

// put writes Services, the first with another endpoint each time.
func (a *questioned) put() {
	a.Helper()
	var b strings.Builder
	for i := range a.services {
		turn := 0
		if i < 20 {
			turn = a.changed
		}
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: web-%[1]d}\nspec: {clusterIP: 10.96.%[2]d.%[3]d, ports: [{port: 80}]}\n---\n"+
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-%[1]d-1, labels: {kubernetes.io/service-name: web-%[1]d}}\n"+
			"addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.%[4]d.%[2]d.%[3]d]}, {addresses: [10.250.%[2]d.%[3]d]}, {addresses: [10.251.%[2]d.%[3]d]},"+
			" {addresses: [10.252.%[2]d.%[3]d]}, {addresses: [10.253.%[2]d.%[3]d]}]\n---\n", i, i/200, 10+i%200, 100+turn%100)
	}
	file := filepath.Join(a.dir, "all.yaml")
	if err := errors.Join(os.WriteFile(file+".new", []byte(b.String()), 0o600), os.Rename(file+".new", file)); err != nil {
		a.Fatal(err)
	}
	a.changed++
}

// changes makes so many changes, each of which must be in the data plane before the next.
func (a *questioned) changes(n int) {
	a.Helper()
	for range n {
		before := a.proxy.Status()
		a.put()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if now := a.proxy.Status(); now.Done.Slices >= before.Done.Slices+20 && now.Syncs > before.Syncs {
				break
			}
			if time.Now().After(end) {
				a.Fatalf("a change waits: %+v", a.proxy.Status())
			}
		}
	}
}

// questions are all queries, as clients send them.
func clientQuestions() map[string]string {
	const packet = `{"from": "198.51.100.7", "to": "default/web-1:80"}`
	return map[string]string{
		"explain": packet, "outcomes": "[" + packet + "]", "trace": packet, "drift": "{}", "services": "{}", "history": "{}", "top": "{}",
		"monitor": "{}", "preview": `{"services": [], "slices": []}`,
	}
}

// stuck is a client that does not read its answer until it is let go.
type stuck struct {
	*httptest.ResponseRecorder
	writing func()
	let     <-chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	s.writing()
	<-s.let
	return s.ResponseRecorder.Write(b)
}

// Clients that do not read their answers hold up neither changes nor each other, and one
// answer is made at a time, with one of those that read the data plane: the rest wait, and changes do not.
func TestQuestionsHoldUpNothing(t *testing.T) {
	a := startQuestioned(t, 20)
	query, takeSnapshot := a.proxy.queryRoute().answer, a.proxy.snapshotRoute().answer
	mux := http.NewServeMux()
	mux.HandleFunc("POST /query/{name}", query)
	ask := func(w http.ResponseWriter, name, question string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/query/"+name, strings.NewReader(question))
		r.Header.Set("Accept", wire.Accept)
		mux.ServeHTTP(w, r)
	}

	const clients = 5 // for each query
	all, let := clientQuestions(), make(chan struct{})
	if len(all) != len(question.Questions()) {
		t.Fatalf("%d of %d queries", len(all), len(question.Questions()))
	}
	var writing, done atomic.Int64
	begin := func(name, question string) {
		go func() {
			w := stuck{httptest.NewRecorder(), func() { writing.Add(1) }, let}
			if name == "snapshot" {
				takeSnapshot(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/snapshot", nil))
			} else {
				ask(w, name, question)
			}
			if w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
			done.Add(1)
		}()
	}
	await := func(what string, n *atomic.Int64, want int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); n.Load() < int64(want); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d of %d", what, n.Load(), want)
			}
		}
	}
	for name, question := range all {
		for range clients {
			begin(name, question)
		}
	}
	begin("snapshot", "")
	await("answers, none of which is read", &writing, clients*len(all)+1)
	a.changes(20)
	close(let)
	await("answers read", &done, clients*len(all)+1)

	for _, turn := range []struct {
		turn  sleep.Turn
		reads bool
	}{{a.proxy.answers, false}, {a.proxy.kernel, true}} {
		if err := turn.turn.Take(t.Context()); err != nil { // one is being made
			t.Fatal(err)
		}
		writing.Store(0)
		done.Store(0)
		waiting := 0
		for _, q := range question.Questions() {
			name, reads := q.Called()
			if reads == turn.reads {
				waiting += clients
			}
			for range clients {
				begin(name, all[name])
			}
		}
		await("answers of the others", &done, clients*len(all)-waiting)
		a.changes(20)
		if n := int(done.Load()); n != clients*len(all)-waiting || waiting == 0 {
			t.Errorf("%d of %d are answered while another answer is made", n, clients*len(all))
		}
		turn.turn.Give()
		await("answers of those that have waited", &done, clients*len(all))
	}
}

// A client that stops reading in the middle of a long answer holds up no other, and gets all of it when it goes on, or
// an error.
func TestLongAnswersHoldUpNothing(t *testing.T) {
	a := startQuestioned(t, 1000)
	route := a.proxy.queryRoute().answer
	ctx, cancel := context.WithCancel(t.Context())
	ask := func(ctx context.Context, w http.ResponseWriter) (aborted bool) {
		defer func() { aborted = recover() != nil }()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/query/services", strings.NewReader("{}"))
		r.SetPathValue("name", "services")
		route(w, r)
		return false
	}
	whole := httptest.NewRecorder()
	ask(t.Context(), whole)
	type result struct {
		text    string
		aborted bool
	}
	begin := func(ctx context.Context) (let chan struct{}, answered chan result) {
		let, answered = make(chan struct{}), make(chan result)
		writing := make(chan struct{}, 100)
		go func() {
			w := stuck{httptest.NewRecorder(), func() { writing <- struct{}{} }, let}
			aborted := ask(ctx, w)
			answered <- result{w.Body.String(), aborted}
		}()
		<-writing
		return let, answered
	}
	let, answered := begin(t.Context())
	gone, broken := begin(ctx)
	again := httptest.NewRecorder()
	if ask(t.Context(), again); whole.Body.Len() < 100_000 || again.Body.String() != whole.Body.String() {
		t.Errorf("%d bytes beside clients that do not read, else %d", again.Body.Len(), whole.Body.Len())
	}
	cancel()
	close(gone)
	if r := <-broken; !r.aborted || len(r.text) >= whole.Body.Len() {
		t.Errorf("a client that is gone: aborted %t, %d bytes of %d", r.aborted, len(r.text), whole.Body.Len())
	}
	close(let)
	if r := <-answered; r.aborted || r.text != whole.Body.String() {
		t.Errorf("aborted %t, %d bytes of %d", r.aborted, len(r.text), whole.Body.Len())
	}
	if len(a.proxy.answers) != 0 {
		t.Error("the turn was not given back")
	}
}

// slow is a driver that is slow to notice that nobody waits for what it reads.
type slow struct {
	driver
	reading chan struct{} // receives when a reading begins; nil for readings as usual
	closed  atomic.Bool
	late    atomic.Int64 // readings that ended after it was closed
}

func (d *slow) Observe(ctx context.Context, found func(nft.Key, nft.Value)) error {
	select {
	case d.reading <- struct{}{}:
		time.Sleep(200 * time.Millisecond)
		if d.closed.Load() {
			d.late.Add(1)
		}
	default:
	}
	return d.driver.Observe(ctx, found)
}

func (d *slow) Close() error {
	d.closed.Store(true)
	return d.driver.Close()
}

// A proxy that ends closes its data plane after the last answer that is read of it.
func TestNothingIsReadOverADataPlaneThatIsClosed(t *testing.T) {
	d := &slow{reading: make(chan struct{})}
	answered := make(chan error, 1)
	t.Run("proxy", func(t *testing.T) { // whose end is at that of this test
		a := startQuestionedOver(t, 20, func(inner driver) driver { d.driver = inner; return d })
		go func() {
			_, err := a.proxy.ask(context.Background(), "trace", []byte(clientQuestions()["trace"]), wire.JSON, nil)
			answered <- err
		}()
		<-d.reading
	})
	if err := <-answered; err != nil && !errors.Is(err, context.Canceled) {
		t.Log(err) // the engine has ended
	}
	if n := d.late.Load(); n > 0 || !d.closed.Load() {
		t.Errorf("%d readings ended after the data plane was closed", n)
	}
}

// uncountable is a data plane whose counters cannot be read.
type uncountable struct{ driver }

func (uncountable) backend(b dataplane.Backend) dataplane.Backend { return uncountableBackend{b} }

type uncountableBackend struct{ dataplane.Backend }

func (uncountableBackend) Connections(context.Context, bool, func(dataplane.Connections)) (bool, error) {
	return true, errors.New("out of memory")
}

// A snapshot is for trouble: where connections cannot be counted it has all the rest, and says so.
func TestSnapshotWithoutCounts(t *testing.T) {
	a := startQuestionedOver(t, 20, func(d driver) driver { return uncountable{d} })
	f, _, err := a.proxy.file(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Services) != 20 || f.ReadAt.IsZero() || f.Top == nil || f.Top.NotCounted != "connections were not counted: out of memory" {
		t.Errorf("%d Services, read at %s, %+v", len(f.Services), f.ReadAt, f.Top)
	}
}

// A snapshot of a running proxy means what that has resolved, after each change, and makes little garbage: 97 MB of
// it at 10,000 Services, or ten times as much for each, once took a collector most of a second beside changes.
func TestSnapshotOfARunningProxy(t *testing.T) {
	const services, most = 1000, 1000 // bytes for each
	a := startQuestioned(t, services)
	for range 5 {
		a.changes(1)
		if same, settled, err := a.proxy.Replays(t.Context()); !same || !settled || err != nil {
			t.Errorf("replayed as it is: %t, settled: %t (%v)", same, settled, err)
		}
	}
	least := uint64(math.MaxUint64)
	for range 10 {
		w := &counted{httptest.NewRecorder(), 0}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := a.proxy.Snapshot(t.Context())
		if err = errors.Join(err, writeFile(a.proxy, s, w)); err != nil || w.bytes < 200*services {
			t.Fatalf("%d bytes (%v)", w.bytes, err)
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	t.Logf("%d bytes of garbage for each Service", least/services)
	if least > most*services {
		t.Errorf("%d bytes of garbage for %d Services", least, services)
	}
}

// A snapshot has the EndpointSlices of the API server also where its Service is missing: they decide which
// addresses Services may have.
func TestSnapshotKnowsTheAPIServers(t *testing.T) {
	a := startQuestioned(t, 20)
	apiServer := netip.MustParseAddr("198.51.100.1")
	a.proxy.engine.Set(&model.Slice{
		Name: model.SliceName{Namespace: "default", Name: "kubernetes"}, Service: "kubernetes",
		Ports: []model.SlicePort{{Name: "https", Proto: model.TCP, Port: 6443}}, Endpoints: []model.SliceEndpoint{{Addr: apiServer, State: model.Ready | model.Serving}},
	})
	name := model.ServiceName{Namespace: "default", Name: "greedy"}
	a.proxy.engine.Set(&model.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.0.1")}, ExternalIPs: []netip.Addr{apiServer},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
	})
	a.changes(1)
	s, err := a.proxy.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range s.Services {
		if v.Object.Name == name && len(v.Problems) != 1 {
			t.Errorf("the address of the API server is not rejected: %v", v.Problems)
		}
	}
	if same, settled, err := a.proxy.Replays(t.Context()); !same || !settled || err != nil {
		t.Errorf("replayed as it is: %t, settled: %t (%v)", same, settled, err)
	}
}

func writeFile(p *Proxy, s *engine.Snapshot, w io.Writer) error {
	f, lists := p.fileOf(s)
	return f.Write(w, lists)
}

func encode(w io.Writer, kind string, v any) error {
	last, err := wire.Encode(kind, v, func(part []byte) error {
		_, err := w.Write(part)
		return err
	})
	_, _ = w.Write(last)
	return err
}

// Lists that are made while they are written have the bytes of the same lists made before.
func TestListsAreAsAWhole(t *testing.T) {
	a := startQuestioned(t, 500)
	a.changes(3)
	ctx, p := t.Context(), a.proxy
	s, err := p.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	both := func(whole, list any, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{wire.JSON, wire.CBOR} {
			var got bytes.Buffer
			want, err := wire.Marshal(kind, whole)
			if err = errors.Join(err, encode(&got, kind, list)); err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%T in %s: %v\n%.500q\n%.500q", whole, kind, err, got.Bytes(), want)
			}
		}
	}
	for _, only := range []question.Filter{{}, {Name: "web-1*"}, {States: []string{"Programmed"}}, {States: []string{"Failing"}}} {
		facts := p.facts()
		d, list := question.List(facts, only, s)
		both(question.Of(facts, only, s), list.In(d, "services"))
		whole := question.ServicesOf(s, only)
		whole.Node, whole.Mode, whole.Total = s.Host.Name, p.mode(), len(s.Services)
		all, err := listed(t, p, question.ListServices(), question.ServicesRequest{Filter: only})
		both(whole, all, err)
		again, err := question.ListServices().Of(ctx, p.Known, question.ServicesRequest{Filter: only})
		both(again, all, err)
	}
	for _, f := range []history.Filter{{}, {Limit: 10}, {Failed: true}, {Service: model.ServiceName{Namespace: "default", Name: "web-1"}}} {
		all, err := listed(t, p, question.ListChanges(), f)
		both(p.engine.History().Find(f), all, err)
	}
	f, lists := p.fileOf(s)
	var got, want bytes.Buffer
	err = f.Write(&got, lists)
	f.Status, f.History = question.Of(p.facts(), question.Filter{}, s), p.engine.History().Find(history.Filter{})
	again, failed := snapshot.Read(&got)
	if err = errors.Join(err, failed, snapshot.Write(&want, f)); err != nil {
		t.Fatal(err)
	}
	if whole, err := snapshot.Read(&want); err != nil || !reflect.DeepEqual(whole.Status.Services, again.Status.Services) || !reflect.DeepEqual(whole.History, again.History) {
		t.Errorf("snapshot: %v\n%.500q\n%.500q", err, got.String(), want.String())
	}
}

// listed is an answer as it is sent.
func listed(t *testing.T, p *Proxy, q question.Question, parameters any) (any, error) {
	t.Helper()
	body, err := json.Marshal(parameters)
	if err != nil {
		t.Fatal(err)
	}
	return q.Reply(t.Context(), body, p.Known)
}

// What answers about all Services allocate, for each: lists of 10,000 were 10 MB when they were made, encoded and copied
// as a whole, and questions together 46 MB a second, for which the collector ran beside changes.
func TestWhatAnswersCost(t *testing.T) {
	const services = 2000
	a := startQuestioned(t, services)
	a.changes(10)
	for name, answer := range a.answers() {
		least := uint64(math.MaxUint64)
		for range 5 {
			var before, after runtime.MemStats
			w := &counted{httptest.NewRecorder(), 0}
			runtime.ReadMemStats(&before)
			if err := answer(w); err != nil {
				t.Fatal(name, err)
			}
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		most, ok := map[string]uint64{
			"explain": 2000 << 10, "outcomes": 1000 << 10, "history": 600 << 10, "preview": 800 * services, "services": 150*services + 200<<10,
			"snapshot": 150*services + 1000<<10, "status": 150*services + 200<<10, "top": 200 << 10, "monitor": 20 << 10,
		}[name]
		t.Logf("%s: %d bytes, %d for each Service", name, least, least/services)
		if !ok || least > most {
			t.Errorf("%s: %d bytes, want at most %d", name, least, most)
		}
	}
}

// answers make each kind of answer, without what it reads of the data plane.
func (a *questioned) answers() map[string]func(io.Writer) error {
	all := map[string]func(w io.Writer) error{
		"snapshot": func(w io.Writer) error {
			s, err := a.proxy.Snapshot(a.Context())
			if err != nil {
				return err
			}
			return writeFile(a.proxy, s, w)
		},
		"status": func(w io.Writer) error {
			now, err := a.proxy.state(a.Context())
			if err != nil {
				return err
			}
			return encode(w, wire.CBOR, now(question.Filter{}))
		},
	}
	for name, question := range clientQuestions() {
		if name != "drift" && name != "trace" {
			all[name] = func(w io.Writer) error {
				last, err := a.proxy.ask(a.Context(), name, []byte(question), wire.CBOR, func(part []byte) error {
					_, err := w.Write(part)
					return err
				})
				_, _ = w.Write(last)
				return err
			}
		}
	}
	return all
}

// BenchmarkAnswers makes each kind of answer about 10,000 Services x 5, without what it reads of the data plane.
func BenchmarkAnswers(b *testing.B) {
	all := startQuestioned(b, 10_000).answers()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := &counted{httptest.NewRecorder(), 0}
				if err := all[name](w); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(w.bytes), "bytes/answer")
			}
		})
	}
}

// BenchmarkChangesBesideAnswers changes an endpoint every ten milliseconds, alone and while all answers about 10,000 Services x 5
// are made each second.
func BenchmarkChangesBesideAnswers(b *testing.B) {
	debug.SetGCPercent(gcPercent)
	a := startQuestioned(b, 10_000)
	answers := a.answers()
	for _, polled := range []bool{false, true, false, true} {
		b.Run(fmt.Sprintf("polled=%t", polled), func(b *testing.B) {
			ctx, stop := context.WithCancel(b.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for tick := time.NewTicker(time.Second); polled && ctx.Err() == nil; {
					for _, name := range slices.Sorted(maps.Keys(answers)) {
						if err := answers[name](&counted{httptest.NewRecorder(), 0}); err != nil {
							b.Error(err)
						}
					}
					select {
					case <-tick.C:
					case <-ctx.Done():
					}
				}
			}()
			last := a.proxy.engine.History().Find(history.Filter{Limit: 1}).Total
			for b.Loop() {
				a.turn()
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond)
			stop()
			<-done
			var took []float64
			for _, e := range a.proxy.engine.History().Find(history.Filter{After: last}).Entries {
				if e.Number > 0 && e.Sync != nil {
					took = append(took, float64(e.Sync.Took)*1e6)
				}
			}
			slices.Sort(took)
			if n := len(took); n > 0 {
				b.ReportMetric(took[n/2], "p50-us")
				b.ReportMetric(took[n*99/100], "p99-us")
				b.ReportMetric(float64(n), "changes")
			}
		})
	}
}

// turn changes a Service of its own.
func (a *questioned) turn() {
	a.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: changing}\nspec: {clusterIP: 10.97.0.1, ports: [{port: 80}]}\n---\n"+
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: changing-1, labels: {kubernetes.io/service-name: changing}}\n"+
		"addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.200.0.%d]}]\n", 1+a.changed%250)
	file := filepath.Join(a.dir, "changing.yaml")
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
		a.Fatal(err)
	}
	a.changed++
}

// counted is a client that counts the bytes of its answer.
type counted struct {
	*httptest.ResponseRecorder
	bytes int
}

func (c *counted) Write(b []byte) (int, error) {
	c.bytes += len(b)
	return len(b), nil
}

// carried is a carrier to a handler of the control socket, in this process.
type carried struct{ http.Handler }

func (c carried) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Result(), nil
}

// A question has one answer, at the control socket and at the metrics address, where it is asked by GET alone; the
// status is the same at the control socket, for whoever has no other way.
func TestAQuestionHasOneAnswer(t *testing.T) {
	a := startQuestioned(t, 5)
	control, page := controlHandler(nil, a.proxy.queryRoute(), a.proxy.statusRoute()), a.proxy.queryPage()
	for name, parameters := range clientQuestions() {
		w, v := httptest.NewRecorder(), httptest.NewRecorder()
		control.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/query/"+name, strings.NewReader(parameters)))
		path := "/query/" + name + "?" + url.Values{QueryParameter: {parameters}}.Encode()
		page.ServeHTTP(v, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != http.StatusOK || v.Code != http.StatusOK || len(w.Body.Bytes()) == 0 || fields(t, w.Body.Bytes()) != fields(t, v.Body.Bytes()) {
			t.Errorf("%s: %d %s\n%d %s", name, w.Code, w.Body, v.Code, v.Body)
		}
		v = httptest.NewRecorder()
		if page.ServeHTTP(v, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)); v.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST of %s: %d", name, v.Code)
		}
	}
	ctx := Through(t.Context(), carried{control})
	d, err := Status(ctx, question.Filter{Name: "web-1"})
	if err != nil || len(d.Services) != 1 || d.Services[0].Name != "default/web-1" || d.Node == "" {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := Ask(ctx, question.ListServices(), question.ServicesRequest{Service: "default/nobody"}); err == nil || !strings.Contains(err.Error(), "no Service default/nobody") {
		t.Error(err)
	}
}

// fields are the names of a document's fields: times and counts go on.
func fields(t *testing.T, text []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if list, ok := v.([]any); ok {
		v = list[0]
	}
	return fmt.Sprint(slices.Sorted(maps.Keys(v.(map[string]any))))
}
