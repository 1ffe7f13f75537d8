package relay

import "context"

// slots are how many connections there is room for: each needs two descriptors,
// and accepting one without having the other for its endpoint helps nobody. Nil
// is no limit. They are safe for concurrent use.
type slots chan struct{}

// newSlots returns the room that a limit on descriptors leaves, with a reserve
// for the rest of the process.
func newSlots(descriptors int) slots {
	if descriptors <= 0 {
		return nil
	}
	reserve := 64 + descriptors/8
	return make(slots, max(1, (descriptors-reserve)/2))
}

// try takes a slot if there is one.
func (s slots) try() bool {
	if s == nil {
		return true
	}
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// take waits for a slot.
func (s slots) take(ctx context.Context) bool {
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s slots) free() {
	if s != nil {
		<-s
	}
}
