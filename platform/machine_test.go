// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// unwilling are addresses that cannot be read a number of times, and change with each notice.
type unwilling struct {
	times, looks, more int
	notices            chan struct{}
}

func (u *unwilling) List() ([]model.LocalAddress, error) {
	if u.times > 0 {
		u.times--
		return nil, errors.New("no buffer space available")
	}
	all := []model.LocalAddress{{Prefix: netip.MustParsePrefix("192.0.2.1/24")}}
	for i := range u.more {
		all = append(all, model.LocalAddress{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i)}), 24)})
	}
	return all, nil
}

func (u *unwilling) Wait(ctx context.Context) {
	select {
	case <-u.notices:
		u.more++
	case <-ctx.Done():
	}
}

func (u *unwilling) Changed() bool {
	u.looks++
	return u.more > 0
}

func (u *unwilling) Close() error {
	u.times = 0
	return nil
}

// Addresses that cannot be read at the start are read again, though none changes.
// Where there is no way to read them the proxy works without.
func TestAddressesThatCannotBeReadAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		m := openMachine(&unwilling{times: 3}, nil, log)
		changes := 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m.follow(ctx, func() { changes++ })
		if all := m.now().Addresses; len(all) != 1 || changes != 1 {
			t.Errorf("after a minute: %v, %d changes", all, changes)
		}
		m = openMachine((*unwilling)(nil), errors.New("too many open files"), log)
		m.follow(ctx, func() { t.Error("changed") })
		if m.addresses != nil {
			t.Error("there are addresses that were not opened")
		}
	})
}

// While no address changes nothing wakes up to look; a change is known at once.
func TestAddressesAreNotLookedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unwilling{notices: make(chan struct{})}
		m := openMachine(u, nil, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		changes, done := 0, make(chan struct{})
		go func() { defer close(done); m.follow(ctx, func() { changes++ }) }()
		if time.Sleep(time.Hour); u.looks > 0 {
			t.Errorf("%d looks in an hour without a change", u.looks)
		}
		u.notices <- struct{}{}
		if synctest.Wait(); changes != 1 || len(m.now().Addresses) != 2 {
			t.Errorf("after a notice: %d changes, %v", changes, m.now().Addresses)
		}
		stop()
		<-done
	})
}
