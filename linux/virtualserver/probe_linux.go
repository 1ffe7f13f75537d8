// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Loaded reports whether the kernel has IPVS, without making it load the module.
func Loaded() bool {
	_, err := os.Stat("/proc/thread-self/net/ip_vs")
	return err == nil
}

// Load queries the IPVS netlink family, which makes the kernel load the module, on the host
// and automatically, where it is installed (MODULE_ALIAS_GENL_FAMILY in
// net/netfilter/ipvs/ip_vs_ctl.c). The error has dataplane.ErrAbsent in it where
// the kernel has no IPVS.
func Load() error {
	h, err := netlink.NewHandle(unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer h.Close()
	_, err = h.GenlFamilyGet("IPVS")
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("this kernel has no IPVS; load its modules on the host with \"modprobe -a ip_vs ip_vs_rr ip_vs_sh\", or choose another --proxy-mode: IPVS %w", dataplane.ErrAbsent)
	case err != nil:
		return fmt.Errorf("ask for IPVS: %w", err)
	}
	return nil
}

// Available returns those of some schedulers that the kernel has, which makes it load
// them. For a moment there is a virtual server with these flags, at an address for
// documentation and a random port, and without destinations.
func (c *Conn) Available(flags uint32, names ...string) (have []string, err error) {
	for _, name := range names {
		switch err := c.try(Server{Scheduler: name, Flags: flags}); {
		case err == nil:
			have = append(have, name)
		case !errors.Is(err, ErrNoDestination): // the errno of a scheduler that is missing
			return nil, fmt.Errorf("try the IPVS scheduler %s: %w", name, err)
		}
	}
	return have, nil
}

func (c *Conn) try(s Server) error {
	const attempts = 5 // at other ports, in case another process tries one
	for n := 1; ; n++ {
		id := ID{Proto: model.TCP, Addr: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), 1+uint16(rand.N(65535)))}
		err := c.Create(id, s)
		if err == nil {
			return c.Delete(id)
		}
		if !errors.Is(err, ErrExists) || n == attempts {
			return err
		}
	}
}

// CheckScheduler returns an error that lists the schedulers that the kernel has if it
// lacks one: see Available.
func (c *Conn) CheckScheduler(flags uint32, name string) error {
	have, err := c.Available(flags, name)
	if err != nil || len(have) > 0 {
		return err
	}
	if have, err = c.Available(flags, Schedulers()...); err != nil {
		return err
	}
	return fmt.Errorf("the kernel has no IPVS scheduler %q (module ip_vs_%s); it has %s", name, name, strings.Join(have, ", "))
}
