package ipvs

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/linux/ipset"
)

// definition is what a set of ours is like in the kernel. kube-proxy's sets of
// the same names differ.
func definition(k Key) ipset.Set {
	s := ipset.Set{Name: k.Set.Name(k.Family), Type: k.Set.kind().String(), Family: k.Family, Marks: k.Set.marks()}
	if k.Set.kind() == bitmapPort {
		s.Family = 0
	} else {
		s.MaxEntries = maxEntries
	}
	return s
}

// entryOf is the entry that a key names, without its mark.
func entryOf(k Key) ipset.Entry {
	if k.Set.kind() == hashNet {
		return ipset.Entry{IP: k.To.Addr(), Bits: k.Bits}
	}
	return ipset.Entry{IP: k.At.Addr(), Port: k.At.Port(), Proto: k.Proto, IP2: k.To.Addr(), Bits: k.Bits}
}

// keyOf is the key of an entry of a set.
func keyOf(set Key, e ipset.Entry) Key {
	k := set
	k.Kind = KindEntry
	if set.Set.kind() == hashNet {
		k.To, k.Bits = netip.AddrPortFrom(e.IP, 0), e.Bits
		return k
	}
	k.At, k.Proto, k.Bits = netip.AddrPortFrom(e.IP, e.Port), e.Proto, e.Bits
	if e.IP2.IsValid() {
		k.To = netip.AddrPortFrom(e.IP2, 0)
	}
	return k
}
