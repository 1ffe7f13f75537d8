// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// "No drift" is said of Services that there are, by name, and never of a mistyped one.
func TestDriftOfOneService(t *testing.T) {
	web := model.ServiceName{Namespace: "ns", Name: "web"}
	s := &engine.Snapshot{Services: []*track.View{{Object: &model.Service{Name: web}}}}
	d, err := driftOf(s, DriftRequest{Service: "ns/web", Look: true})
	var text strings.Builder
	if err != nil || d.Write(&text) != nil || !strings.HasPrefix(text.String(), "no drift of Service ns/web: ") {
		t.Errorf("%v: %s", err, &text)
	}
	for _, name := range []string{"ns/wbe", "web"} {
		if _, err := driftOf(s, DriftRequest{Service: name, Look: true}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := driftOf(s, DriftRequest{Look: true}); err != nil {
		t.Error(err)
	}
}
