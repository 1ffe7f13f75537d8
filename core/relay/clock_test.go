// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"testing"
	"time"
	"unsafe"
)

// ahead returns a time as it was read while the clock was ahead: its monotonic reading is the same.
func ahead(t time.Time, by time.Duration) time.Time {
	const seconds = 30 // where they are in the first word of a time.Time with a monotonic reading
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << seconds
	return t
}

// A clock that is set back, as after a boot, neither stops relays from accepting clients nor keeps
// sessions for as long.
func TestClockSetBack(t *testing.T) {
	now := time.Now()
	if then := ahead(now, time.Hour); then.Sub(now) != 0 || then.Round(0).Sub(now.Round(0)) != time.Hour {
		t.Fatalf("%s is not an hour ahead of %s", then, now)
	}
	t.Run("back-off", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var b backoff
		if !b.start(ahead(now, time.Hour)) {
			t.Error("it had begun")
		}
		if b.wait(ctx); ctx.Err() != nil {
			t.Error("clients wait for as long as the clock was set back")
		}
	})
	t.Run("sessions", func(t *testing.T) {
		needUDP(t)
		s := newServer(t, Options{UDPIdle: time.Minute})
		to, _ := names(t)
		up, _, err := s.dialUDP(to)
		if err != nil {
			t.Fatal(err)
		}
		defer up.Close()
		one := &session{udpRelay: &udpRelay{Relay: &Relay{shared: s.shared}}, up: up}
		one.touch(ahead(now.Add(-time.Minute), time.Hour))
		if one.extend() {
			t.Error("a session lasts for as long as the clock was set back")
		}
	})
}
