// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"errors"
	"fmt"
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

// CheckScheduler tries a scheduler in the network namespace of the calling thread,
// which must not be used otherwise. The error lists the schedulers that the kernel has.
func CheckScheduler(name string) error {
	c, err := Open()
	if err != nil {
		return err
	}
	defer c.Close()
	if c.try(name) == nil {
		return nil
	}
	have := c.available(Schedulers())
	return fmt.Errorf("the kernel has no IPVS scheduler %q (module ip_vs_%s); it has %s", name, name, strings.Join(have, ", "))
}

// Available returns those of some schedulers that the kernel has, which makes it load
// them. The network namespace of the calling thread must not be used otherwise.
func Available(names ...string) ([]string, error) {
	c, err := Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.available(names), nil
}

func (c *Conn) available(names []string) (have []string) {
	for _, s := range names {
		if c.try(s) == nil {
			have = append(have, s)
		}
	}
	return have
}

func (c *Conn) try(scheduler string) error {
	id := ID{Proto: model.TCP, Addr: netip.MustParseAddrPort("198.51.100.1:20000")}
	if err := c.Create(id, Server{Scheduler: scheduler}); err != nil {
		return err
	}
	return c.Delete(id)
}
