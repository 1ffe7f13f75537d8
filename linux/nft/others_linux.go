// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

const (
	maxBaseChains = 1000 // listed: they belong to other programs
	maxOthers     = 20   // described
)

// BaseChains lists the chains at hooks of all tables, iptables-nft's among them, in the
// network namespace of the calling thread. It opens a socket of its own.
func BaseChains(ctx context.Context) (all []diagnosis.BaseChain, err error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sock.Close()) }()
	all = []diagnosis.BaseChain{}
	err = request(ctx, sock, msgGetChain, netlink.FlagDump, unix.AF_UNSPEC, nil, func(m netlink.Message) error {
		if c, ok := parseBaseChain(m); ok && len(all) < maxBaseChains {
			all = append(all, c)
		}
		return nil
	})
	return all, err
}

// familyName is as nft spells it; empty for those whose chains see no packets of
// Services.
func familyName(family byte) string {
	return map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}[family]
}

// parseBaseChain reports whether a chain is at a hook where it sees packets of Services.
func parseBaseChain(m netlink.Message) (c diagnosis.BaseChain, ok bool) {
	const attrChainUse = 6 // NFTA_CHAIN_USE: rules in it
	h := Hook{Policy: PolicyAccept}
	hooked := false
	for kind, v := range m.Attrs() {
		switch kind {
		case attrTable:
			c.Table = netlink.Text(v)
		case attrChainName:
			c.Name = netlink.Text(v)
		case attrChainHook:
			hooked = true
			h.parse(v)
		case attrChainPolicy:
			h.Policy = netlink.Uint32(v)
		case attrChainType:
			c.Type = netlink.Text(v)
		case attrChainUse:
			c.Rules = int(netlink.Uint32(v))
		}
	}
	points := [...]string{"prerouting", "input", "forward", "output", "postrouting"}
	c.Family = familyName(m.Family())
	if !hooked || c.Family == "" || int(h.Point) >= len(points) {
		return c, false
	}
	c.Hook, c.Priority, c.Drop = points[h.Point], int(h.Priority), h.Policy != PolicyAccept
	return c, true
}

// Others implements dataplane.Neighbour, in the network namespace of the calling
// thread.
func (d *Driver) Others(ctx context.Context) ([]string, error) { return Others(ctx, d.table.Name) }

// Others describes the BaseChains outside some tables that may drop or change packets.
func Others(ctx context.Context, own ...string) (texts []string, err error) {
	all, err := BaseChains(ctx)
	for _, c := range all {
		if len(texts) < maxOthers && (c.Rules > 0 || c.Drop) && !slices.Contains(own, c.Table) {
			texts = append(texts, fmt.Sprintf("chain %s %s %s of another program (type %s hook %s priority %d) sees packets too: tandem does not evaluate it",
				c.Family, c.Table, c.Name, c.Type, c.Hook, c.Priority))
		}
	}
	return texts, err
}
