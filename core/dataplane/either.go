package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Either joins several ways to do one mode, best first: the first that works
// on this machine is taken. There must be at least one, each for this system or
// for any.
func Either(name config.Mode, ways ...Mode) Mode {
	m := Mode{Name: name, Conntrack: ways[0].Conntrack}
	m.Probe = func(ctx context.Context) error {
		_, err := works(ctx, ways)
		return err
	}
	m.Open = func(c *config.Config) (Backend, error) {
		way, err := works(context.Background(), ways)
		if err != nil {
			return nil, err
		}
		return way.Open(c)
	}
	m.Plan = func(c *config.Config, host *model.Host, ports []*model.Port) Plan {
		return ways[0].Plan(c, host, ports)
	}
	return m
}

// works returns the first way that works, or why none does.
func works(ctx context.Context, ways []Mode) (Mode, error) {
	var failed []error
	for _, way := range ways {
		err := way.Probe(ctx)
		if err == nil {
			return way, nil
		}
		failed = append(failed, err)
	}
	return Mode{}, fmt.Errorf("no way works here: %w", errors.Join(failed...))
}
