// SPDX-License-Identifier: Apache-2.0

package diagnosis

import "slices"

// check looks at one thing. It returns the zero Check where there is nothing to look
// at, and need not set the ID.
type check struct {
	id     string
	system string // empty for any
	run    func(*Facts) Check
}

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

func ok(found string) Check        { return Check{Level: OK, Found: found} }
func note(found, fix string) Check { return Check{Level: Note, Found: found, Fix: fix} }
func warn(found, fix string) Check { return Check{Level: Warn, Found: found, Fix: fix} }
func fail(found, fix string) Check { return Check{Level: Fail, Found: found, Fix: fix} }
func either(good, bad Check, is bool) Check {
	if is {
		return good
	}
	return bad
}
