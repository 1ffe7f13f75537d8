package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/oracle"
)

// Diff says in what two outcomes differ to a packet; it is empty if they do not.
func Diff(want, got oracle.Outcome) string {
	if want.Same(got) {
		return ""
	}
	if want.Fate != got.Fate {
		return fmt.Sprintf("want %s, got %s", show(want), show(got))
	}
	var parts []string
	for _, w := range want.Endpoints {
		g, ok := find(got.Endpoints, w)
		switch {
		case !ok:
			parts = append(parts, w.Addr.String()+" is not reached")
		case w.SNAT && !g.SNAT:
			parts = append(parts, w.Addr.String()+" sees the client, not the node")
		case !w.SNAT && g.SNAT:
			parts = append(parts, w.Addr.String()+" sees the node, not the client")
		}
	}
	for _, g := range got.Endpoints {
		if _, ok := find(want.Endpoints, g); !ok {
			parts = append(parts, g.Addr.String()+" must not be reached")
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "the same endpoints, but listed twice or out of order: "+show(got))
	}
	return strings.Join(parts, "; ")
}

// Masked returns the outcome of a data plane by which all endpoints see the
// host's address (model.Gap.Source).
func Masked(o oracle.Outcome) oracle.Outcome {
	o.Endpoints = slices.Clone(o.Endpoints)
	for i := range o.Endpoints {
		o.Endpoints[i].SNAT = true
	}
	return o
}

func show(o oracle.Outcome) string { return Expect{Fate: o.Fate, Endpoints: o.Endpoints}.String() }

func find(ts []oracle.Target, t oracle.Target) (oracle.Target, bool) {
	for _, x := range ts {
		if x.Addr == t.Addr {
			return x, true
		}
	}
	return oracle.Target{}, false
}
