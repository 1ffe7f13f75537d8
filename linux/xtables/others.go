// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// ahead lists the rules of a chain of the kernel that come before our first one.
func ahead(f model.Family, table string, c SavedChain, owned func(chain string) bool) (texts []string) {
	if !c.Builtin {
		return nil
	}
	for i, l := range c.Rules {
		if owned(l.Rule().Chain()) {
			return texts
		}
		texts = append(texts, fmt.Sprintf("%s rule %d of %s %s is another program's and comes before tandem's: %s", f, i+1, table, c.Name, strings.TrimSpace(string(l))))
	}
	return nil // none of our chains exists
}

// maxAhead bounds how many rules of others are reported.
const maxAhead = 10

// firstAhead are the first rules that are ahead, and how many more there are.
func firstAhead(texts []string) []string {
	more := len(texts) - maxAhead
	if more <= 0 {
		return texts
	}
	return append(texts[:maxAhead:maxAhead], "and "+printable.Count(more, "more rule")+" of other programs before tandem's: iptables-save shows all")
}
