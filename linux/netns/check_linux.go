// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

const (
	// answerTime is the limit for answers and rejects where a Check has none. It is long so
	// that a busy machine does not fail a check: guests with a tenth of a processor stand
	// still for more than ten seconds.
	answerTime = 2 * time.Minute
	// silence is how long there must be no answer. A later answer would be missed.
	silence = 250 * time.Millisecond
	// quick is the limit for a reject: before the client retransmits.
	quick = 900 * time.Millisecond
)

// Check compares an outcome with what becomes of real connections: the server that
// answers must be one of the endpoints, all of which must be reached, and must see the
// client's address or the node's; rejects must be quick, and drops must stay without an
// answer. Its clients and servers are those of a Net.
type Check struct {
	Host  bool       // Node itself is the client, and its kernel chooses the address
	Src   netip.Addr // the client's address
	Proto model.Proto
	To    netip.AddrPort
	Want  oracle.Outcome

	// SessionAffinity means that all connections reach one endpoint: First, where that
	// is valid. Run sets it to the one that was reached.
	SessionAffinity bool
	First           netip.AddrPort

	// Real means that To is an address of a machine, which may answer itself what passes.
	Real bool

	Patience time.Duration // the limit for answers and rejects; 0 for two minutes

	Dials int // connections that Run has made
}

// Run returns what differs from the expectation; empty for nothing. The error is one of the network of
// namespaces, or ErrNoSCTP.
func (c *Check) Run(n *Net) (wrong string, err error) {
	switch c.Want.Fate {
	case oracle.Reject:
		return c.reject(n)
	case oracle.Drop, oracle.Pass:
		return c.silent(n)
	}
	return c.forward(n)
}

// patience is the limit for answers and rejects.
func (c *Check) patience() time.Duration { return cmp.Or(c.Patience, answerTime) }

func (c *Check) dial(n *Net, timeout time.Duration) (Answer, error) {
	c.Dials++
	call := Call{From: Node, Proto: c.Proto, To: c.To, Timeout: timeout}
	if !c.Host {
		place, ok := n.PlaceOf(c.Src)
		if !ok {
			return Answer{}, fmt.Errorf("%s is not an address of the network", c.Src)
		}
		call.From, call.Src = place, c.Src
	}
	return n.Dial(call)
}

// reject expects a quick reject. A client may miss the first one by a race in its own
// kernel, or may have to wait for a processor, so one of ten attempts must be quick.
// A SYN is sent again, a datagram is not, and kernels limit the ICMP messages that they
// send (RFC 4443, 2.4 f): a datagram without an answer is an attempt that was not quick.
func (c *Check) reject(n *Net) (string, error) {
	const attempts = 10
	patience := c.patience()
	if c.Proto == model.UDP {
		patience /= attempts
	}
	slow := ""
	for range attempts {
		start := time.Now()
		a, err := c.dial(n, patience)
		if err != nil {
			return "", err
		}
		took := time.Since(start)
		switch {
		case a.Outcome == Refused && took < quick:
			return "", nil
		case a.Outcome == Refused:
			slow = fmt.Sprintf("refused only after %s", took.Round(time.Millisecond))
		case a.Outcome == TimedOut && c.Proto == model.UDP:
			slow = "want reject, got " + a.text()
		default:
			return "want reject, got " + a.text(), nil
		}
	}
	return slow, nil
}

// silent is for drop and pass. A packet that passes may reach a machine with the
// address, whose kernel rejects connections to a closed port.
func (c *Check) silent(n *Net) (string, error) {
	a, err := c.dial(n, silence)
	if err != nil || a.Outcome == TimedOut {
		return "", err
	}
	if c.Want.Fate == oracle.Pass && c.Real {
		switch {
		case a.Outcome == Refused:
			return "", nil
		case a.Server == c.To && (a.Client.Addr() == c.Src || c.Host):
			return "", nil
		}
	}
	return fmt.Sprintf("want %s, got %s", c.Want.Fate, a.text()), nil
}

// forward dials until every endpoint was seen, and often enough to see one that
// must not be. With even shares the chance to miss one of n endpoints in
// 30 n + 30 attempts is below one in a billion, and the chance to overlook an
// n+1st in 8 n + 8 below one in a thousand, far below for few.
func (c *Check) forward(n *Net) (string, error) {
	want := c.Want.Endpoints
	least, most := 8*len(want)+8, 30*len(want)+30
	switch {
	case c.SessionAffinity:
		least, most = 20, 20
	case slices.ContainsFunc(want, func(t oracle.Target) bool { return t.Share > 0 }):
		least, most = sampled, sampled
	}
	seen := map[netip.AddrPort]int{}
	var took time.Duration
	for i := 0; i < least || i < most && len(seen) < len(want); i++ {
		if i >= least { // concurrent checks share a round robin unevenly: let others go first at random
			time.Sleep(rand.N(4*took + time.Millisecond))
		}
		begin := time.Now()
		a, err := c.dial(n, c.patience())
		took = time.Since(begin)
		if err != nil {
			return "", err
		}
		if wrong := c.answer(n, a); wrong != "" {
			return fmt.Sprintf("connection %d: %s", i+1, wrong), nil
		}
		if !c.First.IsValid() {
			c.First = a.Server
		}
		if c.SessionAffinity && a.Server != c.First {
			return fmt.Sprintf("connection %d: affinity not kept: %s after %s", i+1, a.Server, c.First), nil
		}
		seen[a.Server]++
	}
	if c.SessionAffinity {
		return "", nil
	}
	if len(seen) == len(want) {
		return unfair(want, seen), nil
	}
	var missing []string
	for _, t := range want {
		if seen[t.Addr] == 0 {
			missing = append(missing, t.Addr.String())
		}
	}
	return fmt.Sprintf("%s never reached in %d connections", strings.Join(missing, ", "), most), nil
}

// sampled is how many connections measure the shares of endpoints.
const sampled = 400

// unfair compares shares of sampled connections. They may be five standard
// deviations off, which happens once in a million checks.
func unfair(want []oracle.Target, seen map[netip.AddrPort]int) string {
	for _, t := range want {
		off := math.Abs(float64(seen[t.Addr])/sampled - t.Share)
		if t.Share > 0 && off > 0.01+5*math.Sqrt(t.Share*(1-t.Share)/sampled) {
			return fmt.Sprintf("%s got %d of %d connections, want %.1f %%", t.Addr, seen[t.Addr], sampled, 100*t.Share)
		}
	}
	return ""
}

// answer compares one answer with the outcome.
func (c *Check) answer(n *Net, a Answer) string {
	if a.Outcome != Answered {
		return "want " + wanted(c.Want) + ", got " + a.text()
	}
	i := slices.IndexFunc(c.Want.Endpoints, func(t oracle.Target) bool { return t.Addr == a.Server })
	if i < 0 {
		return fmt.Sprintf("%s must not be reached", a.Server)
	}
	fromNode := slices.Contains(n.plan.Node, a.Client.Addr())
	switch snat := c.Want.Endpoints[i].SNAT; {
	case c.Host && fromNode: // its own address and the node's are the same
	case snat && !fromNode:
		return fmt.Sprintf("%s sees %s, want an address of the node", a.Server, a.Client.Addr())
	case !snat && a.Client.Addr() != c.Src:
		return fmt.Sprintf("%s sees %s, want the client %s", a.Server, a.Client.Addr(), c.Src)
	}
	return ""
}

// wanted is an outcome in a few words.
func wanted(o oracle.Outcome) string {
	if o.Fate != oracle.Forward {
		return o.Fate.String()
	}
	var all []string
	for _, t := range o.Endpoints {
		all = append(all, t.Addr.String())
	}
	return "an answer by " + strings.Join(all, " or ")
}

// text is an answer in a few words.
func (a Answer) text() string {
	if a.Outcome == Answered {
		return fmt.Sprintf("an answer by %s, which sees %s", a.Server, a.Client.Addr())
	}
	return a.Outcome.String()
}

// Untestable returns why a check cannot be made here, if that is its error.
func Untestable(err error) (reason string, ok bool) {
	if errors.Is(err, ErrNoSCTP) {
		return err.Error(), true
	}
	return "", false
}
