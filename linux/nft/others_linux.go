// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	prose "github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// maxBaseChains bounds how many are listed: they are another program's.
const maxBaseChains = 1000

// BaseChains lists the chains of all tables in the network namespace of the calling
// thread that packets reach by themselves. Tables of iptables-nft are among them.
func BaseChains(ctx context.Context) (all []diagnosis.BaseChain, err error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sock.Close()) }()
	return baseChains(ctx, sock)
}

func baseChains(ctx context.Context, sock *netlink.Socket) (all []diagnosis.BaseChain, err error) {
	const everyFamily = 0 // NFPROTO_UNSPEC
	err = dataplane.RetryInterrupted(func() error {
		all = []diagnosis.BaseChain{}
		return request(ctx, sock, msgGetChain, netlink.FlagDump, everyFamily, func(*netlink.Writer) {}, func(m netlink.Message) error {
			if c, ok := baseChain(m); ok && len(all) < maxBaseChains {
				all = append(all, c)
			}
			return nil
		})
	})
	return all, absent(err)
}

// baseChain reads a chain; it is false for one without a hook.
func baseChain(m netlink.Message) (c diagnosis.BaseChain, ok bool) {
	var h Hook
	h.Policy = 1 // accept
	for kind, v := range m.Attrs() {
		switch kind {
		case 1:
			c.Table = netlink.Text(v)
		case 3:
			c.Name = netlink.Text(v)
		case 4:
			h.parse(v)
			ok = true
		case 5:
			h.Policy = netlink.Uint32(v)
		case 6:
			c.Rules = int(netlink.Uint32(v))
		case 7:
			c.Type = netlink.Text(v)
		}
	}
	names := [...]string{"prerouting", "input", "forward", "output", "postrouting"}
	if int(h.Point) >= len(names) {
		return c, false // of bridges and devices
	}
	family, known := familyNames()[m.Family()]
	c.Family, c.Hook, c.Priority, c.Drop = family, names[h.Point], int(h.Priority), h.Policy == 0
	return c, ok && known
}

// familyNames are those of the families whose tables see packets of IP.
func familyNames() map[byte]string { return map[byte]string{familyInet: "inet", 2: "ip", 10: "ip6"} }

// Others works over a socket of Observe: to close one of its own
// would hold up changes (Counts).
func (d *Driver) Others(ctx context.Context) ([]string, error) {
	all, err := baseChains(ctx, d.readers[0])
	return others(all, d.table.Name), err
}

// maxOthers bounds how many chains are reported.
const maxOthers = 20

// Others reports the BaseChains that have rules, or drop by policy, and are in none of
// some tables.
func Others(ctx context.Context, own ...string) ([]string, error) {
	all, err := BaseChains(ctx)
	return others(all, own...), err
}

func others(all []diagnosis.BaseChain, own ...string) (texts []string) {
	more := 0
	for _, c := range all {
		switch {
		case c.Rules == 0 && !c.Drop, slices.Contains(own, c.Table):
			continue
		case len(texts) == maxOthers:
			more++
			continue
		}
		policy := "accept"
		if c.Drop {
			policy = "drop"
		}
		texts = append(texts, fmt.Sprintf("chain %s %s %s of another program (type %s hook %s priority %d; policy %s) sees packets too: tandem does not evaluate it",
			c.Family, c.Table, c.Name, c.Type, c.Hook, c.Priority, policy))
	}
	if more > 0 {
		texts = append(texts, "and "+prose.Count(more, "more chain")+" of other programs: nft list chains shows all")
	}
	return texts
}
