// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Loopback returns the addresses of a family that never leave a host.
func Loopback(f model.Family) netip.Prefix {
	if f == model.IPv4 {
		return netip.MustParsePrefix("127.0.0.0/8")
	}
	return netip.MustParsePrefix("::1/128")
}

// FromPods returns rules without a target that match this node's pods, among
// packets that arrive and among those of the host itself: these come by no interface
// and can only be matched by address. There are none where pods are not known.
func FromPods(f model.Family, pods model.PodMatch) (arriving, sent []Rule) {
	switch {
	case pods.Interface != "":
		return []Rule{{In: Interface{Name: pods.Interface}}}, nil
	case pods.Prefix != "":
		return []Rule{{In: Interface{Name: pods.Prefix + "+"}}}, nil
	}
	for _, p := range pods.CIDRs {
		if model.FamilyOf(p.Addr()) == f {
			sent = append(sent, Rule{Src: Within(p.Masked())})
		}
	}
	return sent, sent
}
