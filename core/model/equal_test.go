// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/fields"
)

// TestComparisonsSeeEveryField sets each field of a Port and of a Host in turn, at any depth.
// A field of Port that Equal does not compare makes no Delta when it changes: the
// kernel would keep the old rules, and no test of core/resolve would notice.
func TestComparisonsSeeEveryField(t *testing.T) {
	t.Run("Port.Equal", func(t *testing.T) { fields.Seen(t, (*model.Port).Equal) })
	t.Run("Guard.Equal", func(t *testing.T) {
		fields.Seen(t, (*model.Guard).Equal,
			"Listeners") // the processes of a node: core/track compares what Services ask for
	})
	t.Run("Host.SamePorts", func(t *testing.T) {
		fields.Seen(t, (*model.Host).SamePorts,
			"Zone",         // core/track resolves only Services that it matters to
			"Guard",        // so it does when policy changes
			"ServiceCIDRs") // of policy, and of the base of a data plane
	})
	t.Run("Host.SameDataPlane", func(t *testing.T) {
		fields.Seen(t, (*model.Host).SameDataPlane,
			"Zone", "Guard") // of policy alone
	})
	t.Run("all of Host", func(t *testing.T) { // what core/engine asks before it does nothing
		fields.Seen(t, func(h, o *model.Host) bool { return h.SameDataPlane(o) && h.SamePolicy(o) && h.Zone == o.Zone },
			"Guard.Listeners")
	})
}
