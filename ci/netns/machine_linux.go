package netns

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// furnish makes what a scenario says of the machine true on the node: addresses on
// a device that is down, which are the node's all the same and lead nowhere.
func (r *run) furnish() error {
	m := r.scenario.Machine
	if len(m.APIServers) > 0 {
		return &Unfit{errors.New("the proxy reads a folder and is connected to no API server")}
	}
	if len(m.Addresses) == 0 {
		return nil
	}
	err := r.net.Do(lab.Node, func() error { return assign(m.Addresses) })
	if err != nil {
		return &Unfit{fmt.Errorf("the node cannot have these addresses: %w", err)}
	}
	return nil
}

func assign(all []model.LocalAddress) error {
	links := map[bool]netlink.Link{
		false: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "network"}},
		true:  &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "shared"}},
	}
	for _, a := range all {
		link := links[a.Shared]
		if err := netlink.LinkAdd(link); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s device: %w", link.Type(), err)
		}
		ip := a.Prefix.Addr()
		address := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(a.Prefix.Bits(), ip.BitLen())}}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("address %s: %w", a.Prefix, err)
		}
	}
	return nil
}
