package xtables

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// openGeneration asks the kernel for its count of nf_tables transactions, in the
// network namespace of the calling thread.
func openGeneration() (*Watch, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("iptables: netlink socket: %w", err)
	}
	handle := &nl.SocketHandle{Socket: s}
	look := func() (stamp, error) {
		n, err := generation(handle)
		return stamp{generation: n}, err
	}
	return &Watch{look: look, stop: func() error { s.Close(); return nil }, counts: true, lost: true}, nil
}

func generation(handle *nl.SocketHandle) (uint32, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	req := nl.NewNetlinkRequest(subsystem|unix.NFT_MSG_GETGEN, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: handle}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, subsystem|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("the generation of nf_tables: %w", err)
	}
	for _, a := range answers {
		if len(a) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(a[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("the generation of nf_tables: %w", err)
		}
		for _, attr := range attrs {
			if attr.Attr.Type == unix.NFTA_GEN_ID && len(attr.Value) == 4 {
				return binary.BigEndian.Uint32(attr.Value), nil
			}
		}
	}
	return 0, fmt.Errorf("the generation of nf_tables: %w", errAnswer)
}
