package watch

import "strconv"

// held is what a follower remembers of objects: not the objects.
type held struct {
	marks    map[name]mark
	epoch    uint32 // counts listings
	complete bool   // one listing has ended
}

// mark is what is remembered of one object.
type mark struct {
	version uint64 // 0 when it is no number
	epoch   uint32 // of the last listing that named it
	served  bool   // the sink knows it
}

// same reports whether a version of an object is the one that is known, and if
// so marks it as seen.
func (h *held) same(n name, version string) bool {
	m, ok := h.marks[n]
	if !ok || m.version == 0 || m.version != number(version) {
		return false
	}
	m.epoch = h.epoch
	h.marks[n] = m
	return true
}

// set remembers a version of an object.
func (h *held) set(n name, version string, served bool) {
	if h.marks == nil {
		h.marks = map[name]mark{}
	}
	h.marks[n] = mark{version: number(version), epoch: h.epoch, served: served}
}

func (h *held) served(n name) bool { return h.marks[n].served }

func (h *held) delete(n name) { delete(h.marks, n) }

// unseen returns the objects that the current listing did not name.
func (h *held) unseen() (ns []name) {
	for n, m := range h.marks {
		if m.epoch != h.epoch {
			ns = append(ns, n)
		}
	}
	return ns
}

func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
