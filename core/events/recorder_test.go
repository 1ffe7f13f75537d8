// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/model"
)

func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		outcomes := map[string]int{}
		r := events.NewRecorder(func(o string) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[o]++
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var written []string
		answer := func() error { return nil }
		go func() {
			_ = r.Run(ctx, func(_ context.Context, rec events.Record) error {
				err := answer()
				if err == nil {
					written = append(written, fmt.Sprint(rec.About.Name, rec.Count))
				}
				return err
			})
		}()
		about := func(name string) events.Event {
			return events.Event{About: model.Key{Kind: "Service", Namespace: "ns", Name: name}, Reason: "R"}
		}
		r.Add(about("a"))
		synctest.Wait()
		r.Add(about("a"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if fmt.Sprint(written) != "[a1 a2]" {
			t.Errorf("written %v", written)
		}
		fails := 2
		answer = func() error {
			if fails--; fails >= 0 {
				return errors.New("away")
			}
			return nil
		}
		r.Add(about("b"))
		time.Sleep(time.Minute)
		synctest.Wait()
		answer = func() error { return fmt.Errorf("forbidden: %w", events.ErrRejected) }
		r.Add(about("c"))
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		if fmt.Sprint(written) != "[a1 a2 b1]" || outcomes[events.Written] != 3 || outcomes[events.GivenUp] != 1 {
			t.Errorf("written %v, outcomes %v", written, outcomes)
		}
		mu.Unlock()
		for i := range 1000 {
			r.Add(events.Event{About: model.Key{Name: "d"}, Note: fmt.Sprint(i)})
		}
		mu.Lock()
		defer mu.Unlock()
		if outcomes[events.Dropped] != 990 {
			t.Errorf("outcomes %v: an object has a budget of 10", outcomes)
		}
	})
}

// An Event that cannot be written is a warning, unless its namespace is being deleted.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("no right: %w", events.ErrRejected), true},
		{fmt.Errorf("namespace: %w", events.ErrNamespaceGone), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			r := events.NewRecorder(func(string) {}, slog.New(slog.NewTextHandler(&b, nil)))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { _ = r.Run(ctx, func(context.Context, events.Record) error { return c.err }) }()
			r.Add(events.Event{About: model.Key{Kind: "Service", Namespace: "ns", Name: "a"}, Reason: "R"})
			time.Sleep(time.Minute)
			cancel()
			synctest.Wait()
			if got := strings.Contains(b.String(), "level=WARN"); got != c.want {
				t.Errorf("%v: logged %q", c.err, b.String())
			}
		})
	}
}

// A sink that hangs blocks no caller.
func TestAddNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := events.NewRecorder(nil, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- r.Run(ctx, func(ctx context.Context, _ events.Record) error { <-ctx.Done(); return ctx.Err() })
		}()
		start := time.Now()
		for i := range 10000 {
			r.Add(events.Event{Note: fmt.Sprint(i), About: model.Key{Name: fmt.Sprint(i)}})
		}
		if !time.Now().Equal(start) {
			t.Error("it took time")
		}
		cancel()
		<-done
	})
}

func TestComposer(t *testing.T) {
	composer := events.Composer{Node: "n1"}
	web := model.ServiceName{Namespace: "shop", Name: "web"}
	standing := func(was, is model.State) engine.StateChange {
		return engine.StateChange{Service: web, Was: was, State: is, Detail: "no space"}
	}
	show := func(e events.Event, ok bool) string {
		if !ok {
			return "-"
		}
		return fmt.Sprintf("%s | %s %s | %s", e.About, e.Type, e.Reason, e.Note)
	}
	just := func(e events.Event) string { return show(e, true) }
	for _, c := range []struct{ got, want string }{
		{just(composer.Starting("v1", "nftables")), "Node n1 | Normal Starting | tandem v1 starting in mode nftables"},
		{just(composer.HealthAddress(errors.New("taken"))), "Node n1 | Warning FailedToStartProxierHealthcheck | taken. "},
		{just(composer.MetricsAddress(errors.New("taken"))), "Node n1 | Warning FailedToStartMetricServer | taken. "},
		{just(composer.Fallback("ipvs", "iptables", errors.New("no ip_vs"))), "Node n1 | Warning ModeFallback | mode ipvs unavailable (no ip_vs); using mode iptables"},
		{just(composer.Switched("iptables", "nftables")), "Node n1 | Normal ModeSwitched | switched to mode nftables"},
		{just(composer.Drifted(dataplane.Candidates{})), "Node n1 | Warning RulesRepaired | another program on this node changed"},
		{just(composer.Drifted(dataplane.Candidates{Writers: []dataplane.Writer{{Name: "nft"}, {Name: "nft"}, {Name: "firewalld"}}})), "Node n1 | Warning RulesRepaired | another program on this node (nft, firewalld) changed"},
		{just(composer.Check(web, 32080, errors.New("taken"))), "Service shop/web | Warning FailedToStartServiceHealthcheck | node n1 cannot serve healthCheckNodePort 32080: taken"},
		{show(composer.ServiceState(standing(model.Programmed, model.Failing))), "Service shop/web | Warning ProgrammingFailed | node n1 programmed it only in part and retries: no space"},
		{show(composer.ServiceState(standing(model.Failing, model.Programmed))), "Service shop/web | Normal Programmed | node n1"},
		{show(composer.ServiceState(standing(model.Failing, model.Partial))), "Service shop/web | Normal Programmed | node n1 has programmed it again, except: no space"},
		{show(composer.ServiceState(standing(model.Partial, model.Programmed))), "Service shop/web | Normal Programmed | fully programmed"},
		{show(composer.ServiceState(standing(model.Programmed, model.Partial))), "-"}, // its problems are reported one by one
		{show(composer.ServiceState(engine.StateChange{Service: web, Was: model.Failing, Gone: true})), "-"},
		{show(composer.Problem(model.Problem{Object: "Service shop/web", Why: model.WhyFrontendTaken, Detail: "node port 30080"})), "Service shop/web | Warning FrontendTaken | node port 30080: another Service already has this address and port. Change the address"},
		{show(composer.Problem(model.Problem{Object: "EndpointSlice shop/web-1", Why: model.WhyBadAddress})), "EndpointSlice shop/web-1 | Warning BadAddress"},
		{show(composer.Problem(model.Problem{Object: "Node n1", Why: model.WhyNoNode})), "Node n1 | Warning NoNode"},
		{show(composer.Problem(model.Problem{Object: `Service "a\nb"/web`})), "-"},
		{show(composer.Problem(model.Problem{Object: "Service web"})), "-"},
		{show(composer.Problem(model.Problem{Object: "Service /"})), "-"},
		{show(composer.Problem(model.Problem{Object: "file x.yaml"})), "-"},
		{show(composer.Problem(model.Problem{})), "-"},
	} {
		if !strings.HasPrefix(c.got, c.want) {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
}

// Whatever a problem says, its Event names an object or is none.
func FuzzProblem(f *testing.F) {
	f.Add("Service ns/web", "detail", uint8(model.WhyFrontendTaken))
	f.Add("Node n1", "", uint8(model.WhyNoNode))
	f.Add("Service /", "detail", uint8(model.WhyInvalid))
	f.Add("Node "+strings.Repeat("ü", 200), "detail", uint8(model.WhyInvalid))
	f.Fuzz(func(t *testing.T, object, detail string, why uint8) {
		e, ok := events.Composer{Node: "n"}.Problem(model.Problem{Object: object, Detail: detail, Why: model.Reason(why) % (model.WhyNoNode + 1)})
		if ok && (e.About.Kind == "" || e.About.Kind != "Node" && e.About.String() != object || e.Reason == "" || e.Note == "") {
			t.Errorf("%q: %+v", object, e)
		}
		if n := e.Name("n", "u"); len(n) > 253 {
			t.Errorf("%q: a name of %d bytes", object, len(n))
		}
	})
}

// One name for an Event of every node, so that the API has it once; one for each
// node otherwise.
func TestNames(t *testing.T) {
	e := events.Event{About: model.Key{Kind: "Service", Namespace: "ns", Name: "web"}, Reason: "R", Note: "x"}
	if e.Name("a", "u") == e.Name("b", "u") || !strings.HasPrefix(e.Name("a", "u"), "web.") {
		t.Errorf("%s and %s", e.Name("a", "u"), e.Name("b", "u"))
	}
	if e.Name("a", "u") == e.Name("a", "v") {
		t.Error("an object that is made again has the Events of the one before")
	}
	e.Everywhere = true
	if e.Name("a", "u") != e.Name("b", "u") {
		t.Errorf("%s and %s", e.Name("a", "u"), e.Name("b", "u"))
	}
	for _, long := range []string{strings.Repeat("x", 253), strings.Repeat("\xd2", 253), strings.Repeat("ü", 126) + "x"} {
		e.About.Name = long
		if n := len(e.Name("a", "u")); n != 253 {
			t.Errorf("a name of %d bytes for %q", n, long)
		}
	}
}

// Whatever a server or a name says, an Event has no control characters.
func TestNotesArePrintable(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := events.NewRecorder(nil, slog.New(slog.DiscardHandler))
	r.Add(events.Event{About: model.Key{Kind: "Service", Name: "a"}, Reason: "R", Note: "no\x1b[2J\u202e\nspace"})
	if err := r.Run(ctx, func(_ context.Context, rec events.Record) error {
		defer cancel()
		if want := `no\x1b[2J\u202e\x0aspace`; rec.Note != want {
			t.Errorf("note %q, want %q", rec.Note, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
