// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Text returns what "ipset restore" reads to make a set.
func (s Set) Text() string {
	d := "create " + s.Name + " " + s.Type
	if s.Type == bitmapPort {
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
	case "hash:ip":
		return e.IP.String()
	case bitmapPort:
		return fmt.Sprint(e.Port)
	case "hash:ip,port,ip":
		return fmt.Sprintf("%s,%s,%s", e.IP, port, e.IP2)
	case "hash:ip,port,net":
		return fmt.Sprintf("%s,%s,%s", e.IP, port, netip.PrefixFrom(e.IP2, int(e.Bits)))
	case "hash:net":
		return netip.PrefixFrom(e.IP, int(e.Bits)).String()
	}
	return fmt.Sprintf("%s,%s", e.IP, port)
}
