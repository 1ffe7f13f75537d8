package ipvs

import (
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// The number of an orphan is free again when that is gone, and not before.
func TestNumbersOfOrphans(t *testing.T) {
	m, n := marksFor(0), numbers{numbering: newNumbering()}
	stray, foreign := orphan(model.IPv4, m.number(1, ByMarkSNAT)), orphan(model.IPv4, 7)
	n.orphans(m, []Key{stray, foreign})
	server := func(port uint16) Key {
		return Key{Kind: KindServer, Via: ByMark, At: netip.AddrPortFrom(vip.Addr(), port)}
	}
	if got, err := n.number(server(1)); got != 2 || err != nil {
		t.Errorf("beside an orphan with 1: %d, %v", got, err)
	}
	n.orphans(m, nil) // somebody has deleted it
	n.last = [2]uint32{}
	if got, err := n.number(server(2)); got != 1 || err != nil {
		t.Errorf("after it: %d, %v", got, err)
	}
	if stray.Mark != m.number(1, ByMarkSNAT) {
		t.Errorf("its mark is %#x", stray.Mark)
	}
}
