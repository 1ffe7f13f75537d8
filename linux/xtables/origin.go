// SPDX-License-Identifier: Apache-2.0

package xtables

import "github.com/tandem-proxy/tandem/core/model"

// FromPods returns rules without a target that match packets of this node's pods:
// those that arrive, and those that the host itself sends, which have no input
// interface and can only be matched by address. There are none if pods cannot be
// detected.
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
