// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// repeat is --watch: a verb shows its result again and again.
type repeat struct {
	on    bool
	every time.Duration
}

// shortestInterval keeps a watch from being the load that it looks for.
const shortestInterval = 100 * time.Millisecond

func (r *repeat) register(c *cobra.Command) {
	c.Flags().BoolVarP(&r.on, "watch", "w", false, "refresh until interrupted")
	c.Flags().DurationVar(&r.every, "interval", 2*time.Second, "interval of --watch")
}

// run calls show once, or until ctx ends. On a terminal each output replaces the one
// before; elsewhere they follow each other. What cannot be shown at the moment is reported
// instead.
func (r *repeat) run(ctx context.Context, s *screen, show func(*screen) error) error {
	if !r.on {
		return show(s)
	}
	if r.every < shortestInterval {
		return usageError{fmt.Errorf("--interval %s: at least %s", r.every, shortestInterval)}
	}
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		if s.tty {
			s.text.WriteString("\x1b[H\x1b[2J")
		}
		err := show(s)
		if errors.As(err, new(usageError)) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			s.printf("%s: %v\n", time.Now().Format(time.TimeOnly), err)
		}
		if err := s.flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
