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

// unwilling are addresses that cannot be read a number of times, and never change.
type unwilling struct{ times int }

func (u *unwilling) List() ([]model.LocalAddress, error) {
	if u.times > 0 {
		u.times--
		return nil, errors.New("no buffer space available")
	}
	return []model.LocalAddress{{Prefix: netip.MustParsePrefix("192.0.2.1/24")}}, nil
}

func (u *unwilling) Changed() bool { return u.times < 0 }

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
