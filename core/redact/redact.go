// SPDX-License-Identifier: Apache-2.0

// Package redact replaces names and addresses by others, equal ones by equal ones. Package
// snapshot redacts files with it, and windows/hns recordings.
//
// With one key the same words become the same wherever they are; without the key a
// replacement can neither be reversed nor checked for a guessed word.
package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"net/netip"
	"slices"
	"strings"
)

// maxKnown bounds the words and the addresses that are remembered, which only saves time.
const maxKnown = 1 << 16

// Redactor replaces. It is for one goroutine.
type Redactor struct {
	hash      hash.Hash
	names     map[string]string
	addresses map[netip.Addr]netip.Addr
}

// New returns a redactor with a key.
func New(key []byte) *Redactor {
	return &Redactor{hash: hmac.New(sha256.New, key), names: map[string]string{}, addresses: map[netip.Addr]netip.Addr{}}
}

// Text replaces a name, an address in words, or several names with "/" between them.
func (r *Redactor) Text(s string) string {
	if a, err := netip.ParseAddr(s); err == nil {
		return r.Address(a).String()
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return r.Prefix(p).String()
	}
	if p, err := netip.ParseAddrPort(s); err == nil {
		return netip.AddrPortFrom(r.Address(p.Addr()), p.Port()).String()
	}
	if port, ok := strings.CutPrefix(s, "*:"); ok && strings.Trim(port, "0123456789") == "" {
		return s
	}
	parts := strings.Split(s, "/")
	for i, part := range parts {
		parts[i] = r.Name(part)
	}
	return strings.Join(parts, "/")
}

// Name replaces a name by a label of DNS. The Service of the API server keeps its
// own, which every cluster has and policy looks for.
func (r *Redactor) Name(s string) string {
	switch s {
	case "", "default", "kubernetes":
		return s
	}
	if known, ok := r.names[s]; ok {
		return known
	}
	if len(r.names) >= maxKnown {
		clear(r.names)
	}
	sum := r.Sum("name", []byte(s))
	r.names[s] = "n" + hex.EncodeToString(sum[:5])
	return r.names[s]
}

// Sum returns 32 bytes that stand for a value of a kind, for forms that are neither names nor
// addresses.
func (r *Redactor) Sum(kind string, parts ...[]byte) []byte {
	r.hash.Reset()
	for _, p := range slices.Insert(parts, 0, []byte(kind)) {
		_, _ = r.hash.Write(p) // a hash never fails
		_, _ = r.hash.Write([]byte{0})
	}
	return r.hash.Sum(nil)
}

// Address replaces an address: each bit behind the class is turned or not by what
// precedes it, so that two addresses share as many bits afterwards as before
// (Xu et al., Prefix-preserving IP address anonymization, 2002). The class is the first 8
// bits of IPv4, 16 of IPv6. Addresses that mean something by themselves stay. A zone, which is
// the name of an interface, does not.
func (r *Redactor) Address(a netip.Addr) netip.Addr {
	a = a.WithZone("")
	if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return a
	}
	if known, ok := r.addresses[a]; ok {
		return known
	}
	b := a.AsSlice()
	out := slices.Clone(b)
	class := 8
	if a.Is6() {
		class = 16
	}
	for bit := class; bit < len(b)*8; bit++ {
		before := slices.Clone(b[:bit/8+1])
		before[bit/8] &^= 0xff >> (bit % 8)
		if r.Sum("address", before, []byte{byte(bit)})[0]&1 == 1 {
			out[bit/8] ^= 0x80 >> (bit % 8)
		}
	}
	if len(r.addresses) >= maxKnown {
		clear(r.addresses)
	}
	replaced, _ := netip.AddrFromSlice(out)
	r.addresses[a] = replaced
	return replaced
}

// Prefix replaces a prefix so that the addresses in it are in it afterwards. Host
// bits are those of the address.
func (r *Redactor) Prefix(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	masked := p.Masked().Addr() == p.Addr()
	out := netip.PrefixFrom(r.Address(p.Addr()), p.Bits())
	if masked {
		return out.Masked()
	}
	return out
}
