// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"
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
