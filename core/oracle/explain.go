// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
)

// Explanation is an Outcome, and how it came about. Decide and Explain are one
// implementation.
type Explanation struct {
	Packet   Packet
	Outcome  Outcome
	Origin   model.Origin
	Port     *model.Port     // that the packet is for; nil for none
	Frontend *model.Frontend // of Port; nil for none, also where another port of its address is meant
	Steps    []Step
}

// Step is one decision on the way of a packet.
type Step struct {
	About  About  `json:"step"`
	Result string `json:"result"` // the decision
	Why    string `json:"why"`    // and on what grounds
}

// About names what a Step decides.
type About string

// The steps, in their order. Not every packet takes all of them.
const (
	AboutOrigin    About = "origin"        // pod, host or outside
	AboutFrontend  About = "frontend"      // whose address it is
	AboutRanges    About = "source ranges" // loadBalancerSourceRanges
	AboutPolicy    About = "policy"        // balance, reject, drop
	AboutAffinity  About = "affinity"      // sessionAffinity: ClientIP
	AboutEndpoints About = "endpoints"     // the pool
	AboutSNAT      About = "source"        // what address endpoints see
)

// Explain returns what must happen to a packet, given everything that is to be
// programmed, and why. It walks all ports.
func Explain(host *model.Host, ports []*model.Port, p Packet) Explanation {
	e := Explanation{Packet: p, Origin: Origin(host, p)}
	w := walk{host: host, ports: ports, report: func(about About, result, why string, args ...any) {
		e.Steps = append(e.Steps, Step{about, result, fmt.Sprintf(why, args...)})
	}}
	e.Outcome, e.Port, e.Frontend = w.decide(p)
	return e
}
