package relay

import (
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// link is a connection that a loop serves: a client's and the one to its
// endpoint. It is safe for concurrent use.
type link struct {
	loop   *loop
	number int32

	mu     sync.Mutex
	state  state
	fds    [2]int  // by side
	ended  [2]bool // what the side had to say
	choice choice
	share  *share
	late   *time.Timer
}

// side is one of the two ends of a link.
type side int32

const (
	clientSide side = iota
	endpointSide
)

func (s side) other() side { return 1 - s }

// state is what a link does.
type state uint8

const (
	reaching state = iota // an endpoint
	carrying
	gone
)

func (k *link) from() netip.Addr { return k.choice.client }

// reset ends a client who was not served.
func (k *link) reset() { abort(k.fds[clientSide]) }

// serve tries the first endpoint.
func (k *link) serve(to choice) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.choice, k.share = to, to.share
	up, err := k.loop.server.begin(to.endpoint())
	if err != nil {
		k.retry(0) // there it is found again, and judged
		return
	}
	k.fds[endpointSide] = up
	k.late = time.AfterFunc(patience[0], k.waited)
	if !k.loop.add(k) || k.loop.watch(k, endpointSide) != nil {
		k.end(abort)
	}
}

// waited ends the first try when its time is over.
func (k *link) waited() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == reaching {
		k.miss()
	}
}

// miss leaves the other tries to a goroutine.
func (k *link) miss() {
	k.late.Stop()
	hangUp(k.fds[endpointSide])
	k.loop.server.missed(&k.choice)
	k.retry(1)
}

// ready serves an event.
func (k *link) ready(at side, events uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	failed := events&(syscall.EPOLLERR|syscall.EPOLLHUP) != 0
	if k.state == reaching {
		switch {
		case failed:
			k.miss()
		case events&syscall.EPOLLOUT != 0:
			k.reached() // and the endpoint may have spoken
		}
	}
	if failed || events&syscall.EPOLLIN != 0 && !k.ended[at] {
		k.carry(at, failed || events&(syscall.EPOLLRDHUP|syscall.EPOLLPRI) != 0)
	}
}

// reached begins to carry.
func (k *link) reached() {
	k.late.Stop()
	k.choice.reached(time.Now())
	k.late, k.choice = nil, choice{}
	k.state = carrying
	k.loop.server.stats.open.Add(1)
	if k.loop.watch(k, clientSide) != nil {
		k.end(abort)
	}
}

// carry passes on what one side says. A read that is not full has taken all, but
// for what comes behind it: the end, or the rest of a stream with urgent data in
// it. A stream that does not stop is for goroutines. An error ends both sides.
func (k *link) carry(from side, more bool) {
	for full := 0; k.state == carrying; {
		n, err := readSocket(k.fds[from], k.loop.data[:])
		switch {
		case err == syscall.EAGAIN:
			return
		case err != nil:
			k.end(abort)
		case n == 0:
			k.shut(from)
			return
		default:
			k.pass(from, k.loop.data[:n])
		}
		if n == gulp {
			full++
		} else if !more {
			return
		}
		if full == gulps && k.state == carrying {
			k.give(from, nil)
		}
	}
}

// pass writes what one side said. What the other has no room for is given to
// goroutines, which can wait.
func (k *link) pass(from side, data []byte) {
	n, err := writeSocket(k.fds[from.other()], data)
	switch {
	case err != nil && err != syscall.EAGAIN:
		k.end(abort)
	case n < len(data):
		k.give(from, data[n:])
	}
}

// shut passes on the end of a side. Both are closed at the end of the second.
func (k *link) shut(from side) {
	k.ended[from] = true
	if k.ended[from.other()] {
		k.end(hangUp)
		return
	}
	if endWrites(k.fds[from.other()]) != nil {
		k.end(abort)
	}
}

// cut resets both sides.
func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != gone {
		k.end(abort)
	}
}

// end closes both sides in some way.
func (k *link) end(close func(fd int)) {
	for _, fd := range k.fds {
		close(fd)
	}
	k.forget()
	k.loop.server.leave(k.share)
}

// forget is when the loop has nothing more to do with it.
func (k *link) forget() {
	if k.late != nil {
		k.late.Stop()
	}
	if k.state == carrying {
		k.loop.server.stats.open.Add(-1)
	}
	k.state = gone
	k.loop.remove(k)
}
