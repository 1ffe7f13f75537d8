// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"context"

	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/model"
)

// AddFacts adds what doctor's checks want to know of the tables of iptables, without
// making any: rules that come before those of Services, and the policy of FORWARD.
// What cannot be read is left out.
func AddFacts(ctx context.Context, f *diagnosis.Facts) {
	tools, err := FindTools(ctx)
	if err != nil {
		return
	}
	f.EarlyRules = []string{}
	for _, t := range tools {
		for _, family := range t.Installed() {
			if t.Variant == Legacy && family == model.IPv4 {
				f.LegacyTables, _ = legacyTables(family) // nil is unknown
			}
			there, err := t.Present(family, Filter, NAT)
			if err != nil {
				continue
			}
			text, err := t.Save(ctx, family, there...)
			if err != nil {
				continue
			}
			early, drop := early(text)
			f.EarlyRules = append(f.EarlyRules, early...)
			if drop && t.Variant == Legacy { // of the nft variant, nf_tables' chains have it
				f.ForwardDrop = append(f.ForwardDrop, family.String()+" FORWARD (iptables-legacy)")
			}
		}
	}
}
