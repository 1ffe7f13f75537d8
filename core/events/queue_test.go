// SPDX-License-Identifier: Apache-2.0

package events

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// clerk is a queue with a clock.
type clerk struct {
	*queue
	now time.Time
}

func newClerk() *clerk { return &clerk{newQueue(standard()), time.Unix(1000, 0)} }

func (c *clerk) pass(d time.Duration) { c.now = c.now.Add(d) }

// write takes one record and states that it was written, or why not.
func (c *clerk) write(err error, final bool) string {
	n, wait := c.take(c.now)
	if n == nil {
		return fmt.Sprint("wait ", wait)
	}
	s := fmt.Sprintf("%s x%d", n.record.Note, n.record.Count)
	if n.record.Written {
		s += " again"
	}
	c.done(c.now, n, n.record.Count, err, final)
	return s
}

func (c *clerk) expect(t *testing.T, want string) {
	t.Helper()
	if got := c.write(nil, false); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func event(object, note string) Event {
	return Event{About: model.Key{Kind: "Service", Namespace: "ns", Name: object}, Type: Warning, Reason: "Test", Note: note}
}

func TestEqualEventsAreMerged(t *testing.T) {
	c := newClerk()
	c.add(c.now, event("a", "x"))
	c.add(c.now, event("a", "x"))
	c.add(c.now, event("a", "y"))
	c.expect(t, "x x2")
	c.expect(t, "y x1")
	c.expect(t, "wait -1ns")
	c.pass(10 * time.Second)
	for range 100 {
		c.add(c.now, event("a", "x"))
	}
	c.expect(t, "wait 50s")
	c.pass(50 * time.Second)
	c.expect(t, "x x102 again")
	c.pass(time.Hour)
	c.add(c.now, event("a", "x"))
	c.expect(t, "x x1") // another occasion
}

func TestOneObjectCannotSpendWhatIsForAll(t *testing.T) {
	c := newClerk()
	kept := 0
	for i := range 1000 {
		if c.add(c.now, event("flapping", fmt.Sprint(i))) {
			kept++
		}
	}
	if kept != 10 {
		t.Errorf("%d events of one object", kept)
	}
	if !c.add(c.now, event("b", "x")) {
		t.Error("another object's event was dropped")
	}
	c.pass(5 * time.Minute)
	if !c.add(c.now, event("flapping", "later")) || c.add(c.now, event("flapping", "too soon")) {
		t.Error("want one more after five minutes")
	}
}

func TestWhatWaitsIsBoundedAndPaced(t *testing.T) {
	c := newClerk()
	kept := 0
	for i := range 10000 {
		if c.add(c.now, event(fmt.Sprint("s", i), "x")) {
			kept++
		}
	}
	if kept != 256 || len(c.entries) != 256 {
		t.Errorf("%d kept, %d known", kept, len(c.entries))
	}
	written := 0
	for range 60 {
		for c.write(nil, false) == "x x1" {
			written++
		}
		c.pass(time.Second)
	}
	if written != 25+59 {
		t.Errorf("%d written in a minute, want a burst of 25 and one a second", written)
	}
	for i := range 10000 {
		c.pass(time.Second)
		c.add(c.now, event(fmt.Sprint("t", i), "x"))
		c.write(nil, false)
	}
	if len(c.entries) > c.known || len(c.budgets) > c.objects || c.recent.Len() != len(c.entries) || c.spent.Len() != len(c.budgets) {
		t.Errorf("%d Events and %d budgets are remembered", len(c.entries), len(c.budgets))
	}
}

// A namespace with problems in all its objects takes no other's place, and no other's turn; and it is told how
// many had none.
func TestNamespacesShareThePlacesAndTheRate(t *testing.T) {
	c := newClerk()
	about := func(namespace string, n int) Event {
		e := event(fmt.Sprint("s", n), namespace)
		e.About.Namespace = namespace
		return e
	}
	for i := range 20_000 {
		c.add(c.now, about("tenant", i))
	}
	for c.write(nil, false) == "tenant x1" { // the burst
	}
	for i := range 20_000 {
		c.add(c.now, about("tenant", 20_000+i))
	}
	if !c.add(c.now, about("victim", 1)) {
		t.Error("no place is left for another namespace")
	}
	c.pass(time.Second)
	first := c.write(nil, false)
	c.pass(time.Second)
	if second := c.write(nil, false); first != "victim x1" && second != "victim x1" {
		t.Errorf("another namespace's waits longer than one of the tenant's: %s, %s", first, second)
	}
	var last string
	written := 0
	for range 1000 {
		c.pass(time.Second)
		if s := c.write(nil, false); s != "wait -1ns" {
			last = s
			written++
		}
	}
	if want := "tenant (and 39719 more Events about objects of this namespace: see the log of the node) x1"; last != want {
		t.Errorf("the last is %q, want %q", last, want)
	}
	if c.waiting != 0 || c.ring.Len()+len(c.lanes) != 0 || written > 300 {
		t.Errorf("%d written, %d wait in %d lanes", written, c.waiting, c.ring.Len())
	}

	for i := range 10_000 { // each in a namespace of its own
		c.add(c.now, about(fmt.Sprint("ns", i), 0))
		if c.waiting > c.limits.waiting || len(c.lanes) > c.limits.waiting || c.ring.Len() != len(c.lanes) {
			t.Fatalf("%d wait in %d lanes", c.waiting, len(c.lanes))
		}
	}
}

func TestFailuresAreTriedAgainAFewTimes(t *testing.T) {
	c := newClerk()
	c.add(c.now, event("a", "x"))
	down := errors.New("API server away")
	var waits []string
	for range 6 {
		if got := c.write(down, false); got != "x x1" {
			t.Fatalf("got %q", got)
		}
		_, wait := c.take(c.now)
		waits = append(waits, wait.String())
		c.pass(max(0, wait))
	}
	if got := fmt.Sprint(waits); got != "[1s 2s 4s 8s 16s -1ns]" {
		t.Errorf("pauses %s", got)
	}
	c.add(c.now, event("b", "y"))
	c.write(errors.New("forbidden"), true)
	c.expect(t, "wait -1ns")
}

func TestEventThatComesAgainWhileItIsWritten(t *testing.T) {
	c := newClerk()
	c.add(c.now, event("a", "x"))
	n, _ := c.take(c.now)
	told := n.record.Count
	c.add(c.now, event("a", "x"))
	c.done(c.now, n, told, nil, false)
	c.expect(t, "wait 1m0s")
	c.pass(time.Minute)
	c.expect(t, "x x2 again")
}

func BenchmarkAdd(b *testing.B) {
	j, now := newQueue(standard()), time.Now()
	e := event("a", "x")
	b.ReportAllocs()
	for b.Loop() {
		j.add(now, e)
	}
}
