package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Either joins several ways to do one mode, best first: the first that works
// on this machine is taken. There must be at least one, each for this system or
// for any. Ways that are OnRequest are taken when the mode is named, not by auto.
func Either(name config.Mode, ways ...Mode) Mode {
	m := Mode{Name: name, Conntrack: ways[0].Conntrack}
	m.Probe = func(ctx context.Context) error {
		if way, err := works(ctx, ways); way.Probe == nil {
			return err
		}
		return nil
	}
	m.Auto = func(ctx context.Context) error {
		unasked := slices.DeleteFunc(slices.Clone(ways), func(way Mode) bool { return way.OnRequest })
		if way, err := works(ctx, unasked); way.Probe == nil {
			return err
		}
		return nil
	}
	m.Open = func(c *config.Config) (Backend, error) {
		way, err := works(context.Background(), ways)
		if way.Open == nil {
			return nil, err
		}
		if err != nil {
			slog.Warn("the better ways of this mode do not work here", "mode", name, "error", err)
		}
		return way.Open(c)
	}
	m.Remove = func(ctx context.Context, c *config.Config) error {
		var errs []error
		for _, way := range ways { // whichever it was
			if err := way.Clear(ctx, c); !errors.Is(err, ErrAbsent) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	m.Plan = func(c *config.Config, host *model.Host, ports []*model.Port) Plan {
		return ways[0].Plan(c, host, ports)
	}
	return m
}

// works returns the first way that works, and why those before it do not; the
// zero Mode when none does.
func works(ctx context.Context, ways []Mode) (Mode, error) {
	var failed []error
	for _, way := range ways {
		err := way.Probe(ctx)
		if err == nil {
			return way, errors.Join(failed...)
		}
		failed = append(failed, err)
	}
	return Mode{}, fmt.Errorf("no way works here: %w", errors.Join(failed...))
}
