package iptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// lockTime is how long others may hold the lock of iptables, which all share,
// where nothing can go on without it.
const lockTime = 30 * time.Second

// restorePatiently is restore for those who have nothing else to do until the
// lock is free.
func (t tools) restorePatiently(ctx context.Context, f model.Family, text []byte) error {
	return patiently(ctx, lockTime, func() error { return t.restore(ctx, f, text) })
}

// patiently calls f until it is not busy any more, for a while. That it is still
// busy then is a failure like others.
func patiently(ctx context.Context, limit time.Duration, f func() error) error {
	end := time.Now().Add(limit)
	for {
		err := f()
		var busy ledger.ErrBusy
		if !errors.As(err, &busy) {
			return err
		}
		if time.Now().Add(busy.After).After(end) {
			return fmt.Errorf("after %s: %v", limit, err) // busy no more
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(busy.After):
		}
	}
}
