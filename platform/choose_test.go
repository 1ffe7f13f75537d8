// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
)

func TestCandidates(t *testing.T) {
	all := []dataplane.Mode{
		{Name: "modern", System: "linux"},
		{Name: "classic", System: "linux", Fallback: "any"},
		{Name: "kernel", System: "windows"},
		{Name: "any"},
		{Name: "special", System: "linux", OnRequest: true, Fallback: "classic"},
		{Name: "round", Fallback: "about", OnRequest: true},
		{Name: "about", Fallback: "round", OnRequest: true},
		{Name: "lost", Fallback: "nowhere", OnRequest: true},
	}
	names := func(modes []dataplane.Mode) (names []config.Mode) {
		for _, m := range modes {
			names = append(names, m.Name)
		}
		return names
	}
	for system, want := range map[string][]config.Mode{
		"linux": {"modern", "classic", "any"}, "windows": {"kernel", "any"},
	} {
		if got := names(automatic(all, system)); !slices.Equal(got, want) {
			t.Errorf("auto on %s: %q, want %q", system, got, want)
		}
	}
	here := system{modes: func() []dataplane.Mode { return all }}
	for _, c := range []struct {
		config.Config
		want []config.Mode
	}{
		{config.Config{Mode: "special"}, []config.Mode{"special", "classic", "any"}},
		{config.Config{Mode: "special", Strict: true}, []config.Mode{"special"}},
		{config.Config{Mode: "modern"}, []config.Mode{"modern"}},
	} {
		got, err := here.candidates(&c.Config)
		if err != nil || !slices.Equal(names(got), c.want) {
			t.Errorf("%s, strict %t: %q, %v, want %q", c.Mode, c.Strict, names(got), err, c.want)
		}
	}
	if got, err := here.candidates(&config.Config{Mode: "round"}); err != nil || len(got) != len(all) {
		t.Errorf("a circle of fallbacks: %q, %v", names(got), err)
	}
	for _, name := range []config.Mode{"lost", "unknown"} {
		if _, err := here.candidates(&config.Config{Mode: name}); err == nil {
			t.Errorf("mode %s was found", name)
		}
	}
}

// What a named mode gives way to is chosen, and why.
func TestFallbackNamesTheReason(t *testing.T) {
	probe := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	here := system{modes: func() []dataplane.Mode {
		return []dataplane.Mode{
			{Name: "ipvs", Fallback: "iptables", OnRequest: true, Probe: probe(errors.New("no module ip_vs"))},
			{Name: "iptables", Probe: probe(nil)},
		}
	}}
	for mode, want := range map[config.Mode]string{"ipvs": "ipvs is unavailable: no module ip_vs", "iptables": ""} {
		choice, err := here.choose(t.Context(), &config.Config{Mode: mode}, slog.New(slog.DiscardHandler))
		if err != nil || choice.Name != "iptables" || choice.Fallback() != want {
			t.Errorf("%s: mode %s because %q, %v", mode, choice.Name, choice.Fallback(), err)
		}
	}
}

// A mode that did not answer may have programmed what serves now: no other is taken,
// which would remove that.
func TestNoFallbackWithoutAnAnswer(t *testing.T) {
	probe := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for _, tt := range []struct {
		mode config.Mode
		err  error
		want config.Mode
	}{
		{config.Auto, dataplane.ErrAbsent, "second"},
		{config.Auto, dataplane.ErrUndecided, ""},
		{"first", dataplane.ErrAbsent, "second"},
		{"first", dataplane.ErrUndecided, ""},
	} {
		ways := dataplane.FirstOf("first", dataplane.Mode{Probe: probe(fmt.Errorf("busy: %w", tt.err))}, dataplane.Mode{OnRequest: true, Probe: probe(dataplane.ErrAbsent)})
		ways.Fallback = "second"
		here := system{privileged: func() string { return "" }, modes: func() []dataplane.Mode {
			return []dataplane.Mode{ways, {Name: "second", Probe: probe(nil)}}
		}}
		choice, err := here.choose(t.Context(), &config.Config{Mode: tt.mode}, slog.New(slog.DiscardHandler))
		if choice.Name != tt.want || (err == nil) != (tt.want != "") || err != nil && !errors.Is(err, tt.err) {
			t.Errorf("%s, %v: mode %q, %v", tt.mode, tt.err, choice.Name, err)
		}
	}
}

func TestChooseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := thisSystem().choose(ctx, &config.Config{Mode: config.Auto}, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Where an address is taken, what to do is said in commands that the system has.
func TestAnAddressThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	checks := examineListeners(&config.Config{HealthAddress: l.Addr().String()}, false)
	if len(checks) != 1 || checks[0].Level != diagnosis.Warn || !strings.Contains(checks[0].Fix, diagnosis.Listeners(runtime.GOOS)) {
		t.Errorf("%+v", checks)
	}
	if checks = examineListeners(&config.Config{HealthAddress: l.Addr().String()}, true); len(checks) != 1 || checks[0].Level != diagnosis.Note || checks[0].Fix != "" {
		t.Errorf("beside a running tandem: %+v", checks)
	}
	if tool := diagnosis.Listeners("windows"); !strings.HasPrefix(tool, "netstat") {
		t.Errorf("Windows has no %s", tool)
	}
}
