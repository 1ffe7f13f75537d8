// SPDX-License-Identifier: Apache-2.0

package track

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Orphans returns the EndpointSlices of the API server where its Service is unknown: no
// View has them, and no Service may take their addresses all the same.
func (t *Tracker) Orphans() []*model.Slice {
	if v := t.Service(resolve.APIService); v.Object == nil {
		return slices.Clone(v.Slices)
	}
	return nil
}
