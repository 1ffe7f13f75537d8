// SPDX-License-Identifier: Apache-2.0

package connectivity

import "strings"

// Report is the result of a test. Its JSON form is stable.
type Report struct {
	Node string `json:"node"`
	Mode string `json:"mode"`

	Differing   int     `json:"differing"`
	Untested    int     `json:"untested"`
	Omitted     int     `json:"omitted,omitempty"` // frontends beyond what one test tries, without a row
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
	Rows        []Row   `json:"rows"`
}

// Row is one way to a Service.
type Row struct {
	Service  string `json:"service"`
	Policy   string `json:"policy,omitempty"`
	Kind     string `json:"frontend"` // its kind, or "health port"
	Protocol string `json:"protocol"`
	From     string `json:"from"` // node, pod, endpoint (a pod that is one itself) or outside
	Client   string `json:"client"`
	To       string `json:"to"`

	Expected    string   `json:"expected"` // forward, reject, drop or pass; of a health port its status
	Endpoints   []string `json:"endpoints,omitempty"`
	Verdict     Verdict  `json:"verdict"`
	Detail      string   `json:"detail,omitempty"`
	Connections int      `json:"connections"`
}

// Verdict is what a row comes to.
type Verdict string

const (
	OK       Verdict = "ok"
	Gap      Verdict = "gap"      // differs by what the mode cannot do, as it has declared
	Differs  Verdict = "differs"  // the connection fared otherwise than it must
	Untested Verdict = "untested" // it could not be tried
)

func (r *Report) add(row Row) {
	r.Rows = append(r.Rows, row)
	r.Connections += row.Connections
	switch row.Verdict {
	case Differs:
		r.Differing++
	case Untested:
		r.Untested++
	}
}

// Expectation is what a row expects, in a few words.
func (r Row) Expectation() string {
	if len(r.Endpoints) == 0 {
		return r.Expected
	}
	return r.Expected + " to " + strings.Join(r.Endpoints, " ")
}

// atOnce is how many rows are tried together: most of the time they wait.
const atOnce = 16
