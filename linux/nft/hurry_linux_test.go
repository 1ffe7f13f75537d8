// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"runtime"
	"testing"

	"github.com/tandem-proxy/tandem/linux/host"
)

// A thread that makes a small transaction comes before others, and after it no more.
func TestSmallTransactionsComeFirst(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	nice := func() int {
		n, err := host.Nice()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	usual := nice()
	var d Driver
	end := d.hurry()
	during := nice()
	end()
	if after := nice(); after != usual {
		t.Errorf("the nice value is %d, before it was %d", after, usual)
	}
	switch {
	case d.unprivileged:
		if during != usual {
			t.Errorf("the nice value was %d without the privilege for it, before it was %d", during, usual)
		}
		t.Skip("skipped: this user may not raise priorities")
	case during != max(usual-urgency, -20):
		t.Errorf("the nice value was %d, before it was %d", during, usual)
	}
	d.unprivileged = true
	end = d.hurry()
	if n := nice(); n != usual {
		t.Errorf("the nice value is %d, and was to stay %d", n, usual)
	}
	end()
}
