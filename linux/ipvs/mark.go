package ipvs

import (
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
)

// DefaultMark is the bit of the packet mark that kube-proxy uses, too: bit 14.
const DefaultMark = 1 << 14

// Via says how packets get to a virtual server.
type Via uint8

// The ways. Virtual servers are found by address, or by the mark of a packet
// where the answer depends on who asks.
const (
	ByAddress  Via = iota
	ByMark         // marked, endpoints see the client
	ByMarkSNAT     // marked, endpoints see the node
	Orphan         // found in the kernel with a mark that no entry of ours gives, now
)

// Mark is what an entry of a set does to the mark of a packet: the bits of Mask
// become those of Bits. It is the finished answer of a front.
type Mark struct{ Bits, Mask uint32 }

// marks are the bits of the packet mark that mean something to us, all near the
// one that the user has chosen for SNAT:
//
//	masquerade  the endpoint shall see this host's address
//	claimed     a front: it is delivered to this host, where IPVS takes it
//	denied      with masquerade dropped, else refused
//	number      which virtual server by mark
//
// With bit 14 as the first they are 0x4000, 0x2000, 0x1000 and 0x0fff, which
// stays clear of what Calico (0xffff0000), kubelet (0x8000) and Tailscale
// (0xff0000) use.
type marks struct {
	masquerade, claimed, denied uint32
	shift                       int // of the number
}

// maxNumber is how many virtual servers by mark a family can have.
const maxNumber = 1<<12 - 1

// marksFor returns the bits that go with the user's. Where there is no room
// below it they lie above.
func marksFor(masquerade uint32) marks {
	if masquerade == 0 {
		masquerade = DefaultMark
	}
	if masquerade >= 1<<14 {
		return marks{masquerade, masquerade >> 1, masquerade >> 2, 0}
	}
	shift := 3
	for bit := masquerade; bit > 1; bit >>= 1 {
		shift++
	}
	return marks{masquerade, masquerade << 1, masquerade << 2, shift}
}

// all are the bits that every packet comes with clear.
func (m marks) all() uint32 { return m.masquerade | m.claimed | m.denied }

// numberMask are the bits of the number.
func (m marks) numberMask() uint32 { return maxNumber << m.shift }

// number is the mark of a packet for a virtual server by mark.
func (m marks) number(n uint32, via Via) uint32 {
	mark := n<<m.shift | m.claimed
	if via == ByMarkSNAT {
		mark |= m.masquerade
	}
	return mark
}

// parse tells which virtual server by mark a mark is for; n is 0 if it is none
// of ours.
func (m marks) parse(mark uint32) (n uint32, via Via) {
	if mark&^(m.numberMask()|m.masquerade) != m.claimed {
		return 0, 0
	}
	via = ByMark
	if mark&m.masquerade != 0 {
		via = ByMarkSNAT
	}
	return mark & m.numberMask() >> m.shift, via
}

// asIs leaves who is masqueraded to what the chains have decided: all but this
// node's pods.
func (m marks) asIs() Mark { return Mark{m.claimed, m.claimed | m.denied} }

// plain is the answer over a virtual server by address.
func (m marks) plain(snat bool) Mark {
	if snat {
		return Mark{m.claimed | m.masquerade, m.all()}
	}
	return Mark{m.claimed, m.all()}
}

// verdict is the answer to who is not balanced.
func (m marks) verdict(v model.Verdict) Mark {
	if v == model.Drop {
		return Mark{m.all(), m.all()}
	}
	return Mark{m.claimed | m.denied, m.all()}
}

// byMark is the answer over a virtual server by mark, whose number goes into it.
// IPVS compares the whole mark, so all other bits are cleared.
func (m marks) byMark(snat bool) Mark {
	return Mark{m.plain(snat).Bits, ^uint32(0)}
}

// String returns the mark as ipset writes it.
func (m Mark) String() string { return fmt.Sprintf("0x%x/0x%x", m.Bits, m.Mask) }
