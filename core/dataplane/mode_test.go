// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

// way is a way to do a mode that works or not, and opens nothing.
func way(probe error, opened *string, name string) dataplane.Mode {
	return dataplane.Mode{
		Probe: func(context.Context) error { return probe },
		Open: func(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
			*opened = name
			return nil, nil
		},
	}
}

// An implementation that is on request only is not for auto.
func TestEitherUnasked(t *testing.T) {
	opened := ""
	second := way(nil, &opened, "second")
	second.OnRequest = true
	m := dataplane.FirstOf("both", way(errors.New("no rules"), &opened, "first"), second)
	if err := m.Auto(t.Context()); err == nil {
		t.Error("auto takes a mode that is on request only")
	}
	if err := m.Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEither(t *testing.T) {
	no, never := errors.New("no rules"), errors.New("no sockets")
	for want, ways := range map[string][2]error{"first": {nil, nil}, "second": {no, nil}, "": {no, never}} {
		opened := ""
		m := dataplane.FirstOf("both", way(ways[0], &opened, "first"), way(ways[1], &opened, "second"))
		probed := m.Probe(t.Context())
		_, err := m.Open(t.Context(), &config.Config{}, slog.New(slog.DiscardHandler))
		if opened != want || (probed == nil) != (want != "") || (err == nil) != (want != "") {
			t.Errorf("want %q, opened %q (%v, %v)", want, opened, probed, err)
		}
		if want == "" && !(strings.Contains(probed.Error(), "no rules") && strings.Contains(probed.Error(), "no sockets")) {
			t.Errorf("not all reasons: %v", probed)
		}
	}
}

// An implementation that did not answer may serve: the next one is not taken.
func TestEitherUndecided(t *testing.T) {
	opened := ""
	m := dataplane.FirstOf("both", way(dataplane.ErrUndecided, &opened, "first"), way(nil, &opened, "second"))
	if err := m.Probe(t.Context()); !errors.Is(err, dataplane.ErrUndecided) {
		t.Error(err)
	}
	if _, err := m.Open(t.Context(), &config.Config{}, slog.New(slog.DiscardHandler)); !errors.Is(err, dataplane.ErrUndecided) || opened != "" {
		t.Errorf("opened %q, %v", opened, err)
	}
}
