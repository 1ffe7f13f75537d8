// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/diagnosis"
	prose "github.com/tandem-proxy/tandem/core/printable"
)

// Others implements dataplane.OthersLister, over a socket of Observe: to close one of its own
// would hold up changes (Counts).
func (d *Driver) Others(ctx context.Context) ([]string, error) {
	all, err := baseChains(ctx, d.readers[0])
	return others(all, d.table.Name), err
}

// maxOthers bounds how many chains are reported.
const maxOthers = 20

// Others reports the BaseChains that have rules, or drop by policy, and are in none of
// some tables.
func Others(ctx context.Context, own ...string) ([]string, error) {
	all, err := BaseChains(ctx)
	return others(all, own...), err
}

func others(all []diagnosis.BaseChain, own ...string) (texts []string) {
	more := 0
	for _, c := range all {
		switch {
		case c.Rules == 0 && !c.Drop, slices.Contains(own, c.Table):
			continue
		case len(texts) == maxOthers:
			more++
			continue
		}
		policy := "accept"
		if c.Drop {
			policy = "drop"
		}
		texts = append(texts, fmt.Sprintf("chain %s %s %s of another program (type %s hook %s priority %d; policy %s) sees packets too: tandem does not evaluate it",
			c.Family, c.Table, c.Name, c.Type, c.Hook, c.Priority, policy))
	}
	if more > 0 {
		texts = append(texts, "and "+prose.Count(more, "more chain")+" of other programs: nft list chains shows all")
	}
	return texts
}
