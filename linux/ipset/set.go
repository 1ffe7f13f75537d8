// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Set is the definition of a set. Sets with equal definitions are
// interchangeable.
type Set struct {
	Name       string
	Type       string       // such as HashIPPort
	Family     model.Family // without meaning for bitmap:port
	MaxEntries uint32       // of hash types
	Marks      bool         // entries have a mark (skbinfo)
}

const (
	HashIP        = "hash:ip"
	HashNet       = "hash:net"
	HashIPPort    = "hash:ip,port"
	HashIPPortIP  = "hash:ip,port,ip"
	HashIPPortNet = "hash:ip,port,net"
	BitmapPort    = "bitmap:port"
)

// revision is the first revision of a type that supports marks (Linux 3.18).
func revision(setType string) uint8 {
	switch setType {
	case BitmapPort:
		return 3
	case HashIP:
		return 4
	case HashIPPort, HashIPPortIP:
		return 5
	case HashNet:
		return 6
	case HashIPPortNet:
		return 7
	}
	return 0
}

// Entry is an entry of a set. Which fields it has depends on the type; all
// others are zero.
type Entry struct {
	IP       netip.Addr
	Bits     uint8 // of IP in hash:net, of IP2 in hash:ip,port,net
	Proto    model.Proto
	Port     uint16
	IP2      netip.Addr
	Mark     uint32
	MarkMask uint32
}

// Change adds an entry to a set or deletes it. Adding an existing entry updates its
// mark; deleting a missing one is no error.
type Change struct {
	Set    string
	Entry  Entry
	Delete bool
	Net    bool // Bits belong to IP, not to IP2
}

// Errors of the kernel that callers distinguish.
var (
	ErrNotFound = errors.New("no such set")
	ErrExists   = errors.New("a set of this name exists already")
	ErrFull     = errors.New("the set is full")
	ErrInUse    = errors.New("the set is in use")
)

// Ipset's own error numbers start above those of the system: enum ipset_errno of
// linux/netfilter/ipset/ip_set.h, and of ip_set_hash.h.
const (
	errPrivate  = 4096
	errBusy     = 4100
	errHashFull = 4352
)

// errorOf returns the error of an ipset error number; nil for ordinary errno values.
func errorOf(errno int) error {
	switch errno {
	case 2:
		return ErrNotFound
	case 17:
		return ErrExists
	case errBusy:
		return ErrInUse
	case errHashFull:
		return ErrFull
	}
	if errno >= errPrivate {
		return fmt.Errorf("ipset error %d", errno)
	}
	return nil
}

// Text returns what "ipset restore" reads to make a set.
func (s Set) Text() string {
	d := "create " + s.Name + " " + s.Type
	if s.Type == BitmapPort {
		d += " range 0-65535"
	} else {
		d += fmt.Sprintf(" family %s maxelem %d", [...]string{model.IPv4: "inet", model.IPv6: "inet6"}[s.Family], s.MaxEntries)
	}
	if s.Marks {
		d += " skbinfo"
	}
	return d + "\n"
}

// AddText returns what "ipset restore" reads to add an entry to a set.
func (s Set) AddText(e Entry) string {
	line := "add " + s.Name + " " + e.Text(s.Type)
	if s.Marks {
		line += fmt.Sprintf(" skbmark 0x%x/0x%x", e.Mark, e.MarkMask)
	}
	return line + "\n"
}

// Text returns an entry of a type of sets as ipset writes it, without its mark.
func (e Entry) Text(setType string) string {
	port := fmt.Sprintf("%s:%d", e.Proto, e.Port)
	switch setType {
	case HashIP:
		return e.IP.String()
	case BitmapPort:
		return fmt.Sprint(e.Port)
	case HashIPPortIP:
		return fmt.Sprintf("%s,%s,%s", e.IP, port, e.IP2)
	case HashIPPortNet:
		return fmt.Sprintf("%s,%s,%s", e.IP, port, netip.PrefixFrom(e.IP2, int(e.Bits)))
	case HashNet:
		return netip.PrefixFrom(e.IP, int(e.Bits)).String()
	}
	return fmt.Sprintf("%s,%s", e.IP, port)
}
