// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
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
