// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/conformance"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

const (
	// answerTime is the limit for answers and rejects. It is long so that a busy
	// machine does not fail a test.
	answerTime = 5 * time.Second
	// silence is how long there must be no answer. A later answer would be missed.
	silence = 250 * time.Millisecond
	// quick is the limit for a reject: before the client retransmits.
	quick = 900 * time.Millisecond
)

// judge is one row of a packet table on trial.
type judge struct {
	net   *lab.Net
	plan  lab.Plan
	row   conformance.Packet
	had   netip.AddrPort // what the client reached in its sticky row before, and here
	dials int

	scenario *conformance.Scenario // as prepared by furnish
}

// run returns the failure of a row; the error is one of the test network.
func (j *judge) run() (wrong string, err error) {
	switch j.row.Expect.Fate {
	case oracle.Reject:
		return j.reject()
	case oracle.Drop, oracle.Pass:
		return j.silent()
	}
	return j.forward()
}

func (j *judge) dial(timeout time.Duration) (lab.Answer, error) {
	j.dials++
	c := lab.Call{Proto: j.row.Proto, To: j.row.To, Timeout: timeout}
	if j.row.From == "host" {
		c.From = lab.Node // and the kernel chooses the source, as for any process
	} else {
		place, ok := j.net.PlaceOf(j.row.Src)
		if !ok {
			return lab.Answer{}, fmt.Errorf("%s is nowhere in the lab", j.row.Src)
		}
		c.From, c.Src = place, j.row.Src
	}
	return j.net.Dial(c)
}

// reject expects a quick reject. A client may miss the first one by a race in its own
// kernel, so one of three attempts must be quick.
func (j *judge) reject() (string, error) {
	var took time.Duration
	for range 3 {
		start := time.Now()
		a, err := j.dial(answerTime)
		if err != nil {
			return "", err
		}
		if a.Outcome != lab.Refused {
			return "want reject, got " + describe(a), nil
		}
		if took = time.Since(start); took < quick {
			return "", nil
		}
	}
	return fmt.Sprintf("refused only after %s", took.Round(time.Millisecond)), nil
}

// silent is for drop and pass. A packet that passes may reach a machine with the
// address, whose kernel rejects connections to a closed port.
func (j *judge) silent() (string, error) {
	a, err := j.dial(silence)
	if err != nil || a.Outcome == lab.TimedOut {
		return "", err
	}
	if j.row.Expect.Fate == oracle.Pass {
		_, real := j.net.PlaceOf(j.row.To.Addr())
		real = real || j.row.To.Addr().IsLoopback() || slices.ContainsFunc(j.scenario.Machine.Addresses, func(a model.LocalAddress) bool {
			return a.Prefix.Addr() == j.row.To.Addr()
		}) || slices.ContainsFunc(j.scenario.Shared, func(p netip.Prefix) bool { return p.Addr() == j.row.To.Addr() })
		switch {
		case real && a.Outcome == lab.Refused:
			return "", nil
		case real && a.Server == j.row.To && (a.Client.Addr() == j.row.Src || j.row.From == "host"):
			return "", nil
		}
	}
	return fmt.Sprintf("want %s, got %s", j.row.Expect.Fate, describe(a)), nil
}

// forward dials until every endpoint was seen, and often enough to see one that
// must not be. With even shares the chance to miss one of n endpoints in
// 30 n + 30 attempts is below one in a billion, and the chance to overlook an
// n+1st in 8 n + 8 below one in a thousand, far below for few.
func (j *judge) forward() (string, error) {
	want := j.row.Expect.Endpoints
	least, most := 8*len(want)+8, 30*len(want)+30
	switch {
	case j.row.Expect.SessionAffinity:
		least, most = 20, 20
	case shared(want):
		least, most = sampled, sampled
	}
	first := j.had
	seen := map[netip.AddrPort]int{}
	var took time.Duration
	for n := 0; n < least || n < most && len(seen) < len(want); n++ {
		if n >= least { // concurrent rows share a round robin unevenly: let others go first at random
			time.Sleep(rand.N(4*took + time.Millisecond))
		}
		begin := time.Now()
		a, err := j.dial(answerTime)
		took = time.Since(begin)
		if err != nil {
			return "", err
		}
		if wrong := j.answer(a); wrong != "" {
			return fmt.Sprintf("connection %d: %s", n+1, wrong), nil
		}
		if n == 0 && !j.row.Expect.Same {
			first = a.Server
		}
		if j.row.Expect.SessionAffinity && a.Server != first {
			return fmt.Sprintf("connection %d: not sticky: %s after %s", n+1, a.Server, first), nil
		}
		j.had = first
		seen[a.Server]++
	}
	if j.row.Expect.SessionAffinity {
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

// sampled is how many connections tell the shares of endpoints.
const sampled = 400

func shared(want []oracle.Target) bool {
	return slices.ContainsFunc(want, func(t oracle.Target) bool { return t.Share > 0 })
}

// unfair compares shares of sampled connections. They may be five standard
// deviations off, which happens once in a million rows.
func unfair(want []oracle.Target, seen map[netip.AddrPort]int) string {
	for _, t := range want {
		off := math.Abs(float64(seen[t.Addr])/sampled - t.Share)
		if t.Share > 0 && off > 0.01+5*math.Sqrt(t.Share*(1-t.Share)/sampled) {
			return fmt.Sprintf("%s got %d of %d connections, want %.1f %%", t.Addr, seen[t.Addr], sampled, 100*t.Share)
		}
	}
	return ""
}

// answer compares one answer with the expectation.
func (j *judge) answer(a lab.Answer) string {
	if a.Outcome != lab.Answered {
		return "want " + j.row.Expect.String() + ", got " + describe(a)
	}
	i := slices.IndexFunc(j.row.Expect.Endpoints, func(t oracle.Target) bool { return t.Addr == a.Server })
	if i < 0 {
		return fmt.Sprintf("%s must not be reached", a.Server)
	}
	fromNode := slices.Contains(j.plan.Node, a.Client.Addr())
	switch snat := j.row.Expect.Endpoints[i].SNAT; {
	case j.row.From == "host" && fromNode: // its own address and the node's are the same
	case snat && !fromNode:
		return fmt.Sprintf("%s sees %s, want an address of the node", a.Server, a.Client.Addr())
	case !snat && a.Client.Addr() != j.row.Src:
		return fmt.Sprintf("%s sees %s, want the client %s", a.Server, a.Client.Addr(), j.row.Src)
	}
	return ""
}

func describe(a lab.Answer) string {
	if a.Outcome == lab.Answered {
		return fmt.Sprintf("an answer by %s, which sees %s", a.Server, a.Client.Addr())
	}
	return a.Outcome.String()
}

// skippable returns why a row cannot be judged here.
func skippable(err error) (reason string, ok bool) {
	if errors.Is(err, lab.ErrNoSCTP) {
		return err.Error(), true
	}
	return "", false
}
