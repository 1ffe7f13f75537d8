package ipvs

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// numbering gives virtual servers by mark their numbers, which belong to one
// family each.
type numbering struct {
	of   map[Key]uint32
	used [2]map[uint32]Key
	last [2]uint32
}

func newNumbering() *numbering {
	return &numbering{of: map[Key]uint32{}, used: [2]map[uint32]Key{model.IPv4: {}, model.IPv6: {}}}
}

// bind notes a number that is in use.
func (n *numbering) bind(server Key, number uint32) {
	n.of[server] = number
	n.used[server.Family][number] = server
}

// take returns the number of a server, a free one if it has none.
func (n *numbering) take(server Key) (uint32, error) {
	if number, ok := n.of[server]; ok {
		return number, nil
	}
	used, last := n.used[server.Family], &n.last[server.Family]
	for range maxNumber {
		if *last = *last%maxNumber + 1; used[*last] == (Key{}) {
			n.bind(server, *last)
			return *last, nil
		}
	}
	return 0, fmt.Errorf("all %d marks for virtual servers are in use", maxNumber)
}

func (n *numbering) free(server Key) {
	if number, ok := n.of[server]; ok {
		delete(n.of, server)
		delete(n.used[server.Family], number)
	}
}

// numberAll numbers the servers of a set of objects, in their order.
func numberAll(objects map[Key]Value) *numbering {
	n := newNumbering()
	for _, k := range slices.SortedFunc(maps.Keys(objects), compareKeys) {
		if k.Kind == KindServer && k.Via != ByAddress {
			_, _ = n.take(k) // a plan may have more than the kernel can
		}
	}
	return n
}

// mark is the mark of an entry with its server's number in it.
func (n *numbering) mark(m marks, k Key, v Value) Mark {
	if v.Via == ByAddress {
		return v.Mark
	}
	return Mark{m.number(n.of[serverFor(k, v)], v.Via), v.Mark.Mask}
}

// serverFor returns the virtual server by mark that an entry leads to.
func serverFor(k Key, v Value) Key {
	return Key{Kind: KindServer, Family: k.Family, Proto: k.Proto, Via: v.Via, At: v.Server}
}
