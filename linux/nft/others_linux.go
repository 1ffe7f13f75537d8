// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// BaseChain is a chain at a hook that is in no table of ours.
type BaseChain struct {
	Family, Table, Name string
	Hook                Hook
}

// String names the chain for people.
func (c BaseChain) String() string {
	return fmt.Sprintf("chain %s %s %s of another program (%s) sees packets too: tandem does not evaluate it", c.Family, c.Table, c.Name, c.Hook)
}

// familyName is as nft spells it; empty for those whose chains see no packets of
// Services.
func familyName(family byte) string {
	return map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}[family]
}

// maxBaseChains bounds how many are listed.
const maxBaseChains = 20

// BaseChains lists the chains at hooks that have rules or drop by policy, in the
// network namespace of the calling thread, but for those of some tables. It opens a
// socket of its own.
func BaseChains(ctx context.Context, own ...string) (all []BaseChain, err error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	err = request(ctx, sock, msgGetChain, netlink.FlagDump, unix.AF_UNSPEC, nil, func(m netlink.Message) error {
		c, busy := parseBaseChain(m)
		if busy && c.Family != "" && len(all) < maxBaseChains && !slices.Contains(own, c.Table) {
			all = append(all, c)
		}
		return nil
	})
	return all, err
}

// parseBaseChain reports whether a chain is at a hook and may stop or change packets.
func parseBaseChain(m netlink.Message) (c BaseChain, busy bool) {
	const attrChainUse = 6 // NFTA_CHAIN_USE: rules in it
	c.Family, c.Hook.Policy = familyName(m.Family()), PolicyAccept
	hooked, rules := false, uint32(0)
	for kind, v := range m.Attrs() {
		switch kind {
		case attrTable:
			c.Table = netlink.Text(v)
		case attrChainName:
			c.Name = netlink.Text(v)
		case attrChainHook:
			hooked = true
			c.Hook.parse(v)
		case attrChainPolicy:
			c.Hook.Policy = netlink.Uint32(v)
		case attrChainType:
			c.Hook.Type = netlink.Text(v)
		case attrChainUse:
			rules = netlink.Uint32(v)
		}
	}
	return c, hooked && (rules > 0 || c.Hook.Policy != PolicyAccept)
}

// Others implements dataplane.Neighbour, in the network namespace of the calling
// thread.
func (d *Driver) Others(ctx context.Context) ([]string, error) { return Others(ctx, d.table.Name) }

// Others tells of the BaseChains that are in none of some tables.
func Others(ctx context.Context, own ...string) (texts []string, err error) {
	all, err := BaseChains(ctx, own...)
	for _, c := range all {
		texts = append(texts, c.String())
	}
	return texts, err
}
