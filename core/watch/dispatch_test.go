// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

// A Node that was sent has been read, though the bookmark that completes the list
// comes later: the first Synced leaves nothing in doubt.
func TestSyncedBetweenNodeAndItsBookmark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecord()
		d := newDispatcher(s, "node-1", defaultLimits())
		nodes := ownNode("node-1")
		for _, resource := range []string{"services", "endpointslices", "servicecidrs"} {
			d.listed(&kind{resource: resource})
		}
		d.put(&nodes, name{Name: "node-1"}, nodeIn("a"), false)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.run(ctx)
		synctest.Wait()
		d.listed(&nodes)
		synctest.Wait()
		if synced, _, _ := s.told(); !slices.Equal(synced, []bool{true}) {
			t.Errorf("synced: %v", synced)
		}
	})
}
