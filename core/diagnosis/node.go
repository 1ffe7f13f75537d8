// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"slices"
)

// Node runs all checks of a node that need nothing but facts.
func Node(f *Facts) []Check {
	var found []Check
	for _, c := range slices.Concat(routingChecks(), filterChecks(), conntrackChecks(), resourceChecks(), windowsChecks(), runningChecks()) {
		if c.system != "" && c.system != f.System {
			continue
		}
		if result := c.run(f); result.Level != "" {
			result.ID = c.id
			found = append(found, result)
		}
	}
	return found
}

// Worst returns the worst level of checks; OK when there are none.
func Worst(checks []Check) Level {
	order := []Level{Fail, Warn, Note}
	for _, l := range order {
		for _, c := range checks {
			if c.Level == l {
				return l
			}
		}
	}
	return OK
}
