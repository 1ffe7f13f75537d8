// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// However much is queued about few objects, the queue stays small: of each the
// latest counts. What must be done in any case is, and all changes are counted.
func TestTheInboxKeepsTheLatest(t *testing.T) {
	const rounds = 10_000
	b := newInbox()
	var did []string
	for round := range rounds {
		for n := range 10 {
			what := fmt.Sprint("s", n, " ", round)
			b.put(task{
				about: model.Key{Kind: "Service", Name: fmt.Sprint("s", n)}, of: Changes{Services: 1},
				do: func(time.Time) { did = append(did, what) },
			})
		}
		if round%1000 == 0 {
			b.post(func(time.Time) { did = append(did, "asked") })
		}
		if len(b.queue) > compactLength {
			t.Fatalf("%d tasks are queued", len(b.queue))
		}
	}
	queue, _ := b.take()
	var done Changes
	for _, task := range queue {
		task.do(time.Time{})
		done = done.plus(task.of)
	}
	counts := map[string]int{}
	for _, d := range did {
		counts[d]++
	}
	for n := range 10 {
		if last := fmt.Sprint("s", n, " ", rounds-1); counts[last] != 1 || did[len(did)-10+n] != last {
			t.Errorf("%s was done %d times, the end is %v", last, counts[last], did[len(did)-10:])
		}
	}
	if counts["asked"] != rounds/1000 || done.Services != 10*rounds {
		t.Errorf("%d questions answered, %+v", counts["asked"], done)
	}
}

// SetTurn sets how many entries are in a turn. It is for the engine's goroutine.
func (e *Engine) SetTurn(entries int) { e.turns.limit, e.turns.most = entries, entries }

// A turn has as many entries as fit 50 ms by what turns have taken, but never so many that others wait longer than a few
// milliseconds; where every sync takes long, as many as take as
// much again, so that large changes are not slowed down many times; and one slow turn is made up for.
func TestTurnsLearnWhatFits(t *testing.T) {
	for _, c := range []struct {
		fixed, entry time.Duration // of a sync, and of each of its entries
		least, most  int           // entries in a turn, once that is known
	}{
		{time.Millisecond, time.Microsecond, turnEntries, turnEntries},
		{time.Millisecond, 10 * time.Microsecond, turnEntries, turnEntries},
		{3 * quickSync, time.Microsecond, 3 * turnEntries, 3 * turnEntries},
		{time.Millisecond, 50 * time.Microsecond, 500, 1000},
		{time.Millisecond, time.Millisecond, 25, 50},
		{150 * time.Millisecond, 10 * time.Microsecond, 7500, 15_000},
		{10 * time.Second, 100 * time.Microsecond, 1, 2000},
		{0, 0, turnEntries, turnEntries},
	} {
		turns := newTurns()
		sync := func(entries int, disturbed time.Duration) {
			turns.used = min(entries, turns.limit)
			turns.end(c.fixed+time.Duration(turns.used)*c.entry+disturbed, dataplane.Work{})
		}
		sync(1, 0)
		check := func(when string) {
			for range 20 {
				if sync(resolve.MaxEntries, 0); turns.limit > 2*c.most {
					t.Errorf("%s: %d entries a turn at %s each, want %d at most", when, turns.limit, c.entry, 2*c.most)
				}
			}
			if turns.limit < c.least {
				t.Errorf("%s: %d entries a turn at %s + %s each, want %d at least", when, turns.limit, c.fixed, c.entry, c.least)
			}
		}
		sync(resolve.MaxEntries, 0)
		check("at first")
		sync(resolve.MaxEntries, time.Second)
		check("after a pause")
	}
}

// While the engine is busy for minutes, callers come and go: what those asked that have gone
// takes no memory, and who waits is answered.
func TestQuestionsOfThoseThatHaveGoneAreDropped(t *testing.T) {
	b := newInbox()
	answer := make(chan int, 1)
	go func() {
		n, err := ask(t.Context(), b, func() int { return 42 })
		if err != nil {
			t.Error(err)
		}
		answer <- n
	}()
	<-b.wake
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 * compactLength {
		if _, err := ask(gone, b, func() int { t.Error("asked for nobody"); return 0 }); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if len(b.queue) > compactLength {
			t.Fatalf("%d tasks are queued", len(b.queue))
		}
	}
	queue, _ := b.take()
	for _, task := range queue {
		task.do(time.Time{})
	}
	if n := <-answer; n != 42 {
		t.Errorf("the answer is %d", n)
	}
}

// What says something about all that came before it stays behind that, however much is left out.
func TestCompactKeepsTheOrderOfWhatIsLast(t *testing.T) {
	a := func(name string) task {
		return task{about: model.Key{Kind: "EndpointSlice", Namespace: "default", Name: name}}
	}
	var got []string
	for _, task := range compact([]task{a("x"), a("y"), a("x"), {last: true}, a("y"), a("x"), a("y")}) {
		if task.last {
			got = append(got, "last")
		} else {
			got = append(got, task.about.Name)
		}
	}
	if want := "[y x last x y]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
