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

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Note Level = "note" // good to know; nothing is wrong
	Warn Level = "warn" // works, but something will not be as expected
	Fail Level = "fail" // Services do not work
)

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
