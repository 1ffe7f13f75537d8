// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
)

// Subject names the object of a change, and how many there are of kinds that are
// about many.
func (e *Entry) Subject() string {
	switch {
	case e.Count > 0 && e.Detail != "":
		return fmt.Sprintf("%d (%s)", e.Count, e.Detail)
	case e.Count > 0:
		return printable.Count(e.Count, "object")
	case e.Detail != "":
		return strings.TrimSpace(e.Object + " (" + e.Detail + ")")
	}
	return e.Object
}

// Wrote summarizes what the sync of a change did to the data plane, and with how
// many others: "+2 ~1 -3 (with 4 others)".
func (e *Entry) Wrote() string {
	a := e.Sync
	if a == nil {
		return "waiting"
	}
	text := fmt.Sprintf("+%d ~%d -%d", a.Created, a.Replaced, a.Deleted)
	if a.Created+a.Replaced+a.Deleted == 0 {
		text = "nothing"
	}
	if a.Failed > 0 {
		text += fmt.Sprintf(", %d failed", a.Failed)
	}
	if a.Deferred > 0 {
		text += fmt.Sprintf(", %d deferred", a.Deferred)
	}
	if a.Changes > 1 {
		text += " (with " + printable.Count(a.Changes-1, "other") + ")"
	}
	return text
}

// Short is a duration with about three digits; "-" when it is unknown.
func Short(s Seconds) string {
	d := s.Duration()
	switch {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
