// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"strings"
	"testing"

	"github.com/kardianos/service"
)

// A system without a service manager of ours says so, and gets no script that nothing
// starts.
func TestManagerKnown(t *testing.T) {
	for _, manager := range []string{"linux-systemd", "linux-openrc", "windows-service"} {
		if err := managerKnown(manager); err != nil {
			t.Errorf("%s: %v", manager, err)
		}
	}
	for _, manager := range []string{"unix-systemv", "linux-upstart", ""} {
		if err := managerKnown(manager); err == nil || !strings.Contains(err.Error(), "neither systemd nor OpenRC") {
			t.Errorf("%q: %v", manager, err)
		}
	}
}

// A service that is stopping or reloading is not taken for one that is not installed: its unit would be replaced.
func TestStatesBetweenOthers(t *testing.T) {
	for _, c := range []struct {
		state service.Status
		err   error
		unit  string
		want  State
		fails string
	}{
		{service.StatusRunning, nil, "/unit", Running, ""},
		{service.StatusStopped, nil, "/unit", Stopped, ""},
		{service.StatusUnknown, service.ErrNotInstalled, "", Absent, ""},
		{service.StatusUnknown, service.ErrNotInstalled, "/unit", Absent, "/unit is there"},
		{service.StatusUnknown, errors.New("service in failed state"), "/unit", Stopped, ""},
		{service.StatusUnknown, errors.New("bus"), "/unit", Absent, "bus"},
	} {
		got, err := stateOf(c.state, c.err, c.unit)
		if got != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%v, %v, %q: %s, %v", c.state, c.err, c.unit, got, err)
		}
	}
}
