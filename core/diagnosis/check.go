// SPDX-License-Identifier: Apache-2.0

// Package diagnosis has the results of `tandem doctor`: what each check found, and how
// to fix it. The checks themselves are where their subject is: modes in platform, the
// kernel in linux/host.
package diagnosis

// Check is the result of one check. Its JSON form is stable.
type Check struct {
	ID    string `json:"id"` // stable, for scripts: "mode-nftables"
	Level Level  `json:"level"`
	Found string `json:"found"`         // what was found
	Fix   string `json:"fix,omitempty"` // what to do about it, as a command where there is one
}

// Level states how bad a finding is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Note Level = "note" // good to know; nothing is wrong
	Warn Level = "warn" // works, but something will not be as expected
	Fail Level = "fail" // Services do not work
)

// check inspects one aspect of the node. It returns the zero Check where there is nothing to
// inspect, and need not set the ID.
type check struct {
	id     string
	system string // empty for any
	run    func(*Facts) Check
}

func ok(found string) Check { return Check{Level: OK, Found: found} }

func note(found, fix string) Check { return Check{Level: Note, Found: found, Fix: fix} }

func warn(found, fix string) Check { return Check{Level: Warn, Found: found, Fix: fix} }

func fail(found, fix string) Check { return Check{Level: Fail, Found: found, Fix: fix} }

func either(good, bad Check, is bool) Check {
	if is {
		return good
	}
	return bad
}
